"""The version, as the package, the command line and the record of every result tell it."""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
