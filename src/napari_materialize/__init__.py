"""Browse a computation as if it were a stored image, and keep a box of it as OME-Zarr."""
