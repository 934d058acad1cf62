"""The napari plugin: the dock widget, the result as a layer, the sample, the demo.

Owns everything that says napari, Qt or layer. It computes and decides nothing: the widget shows a
`napari_materialize.session.Session` and calls it.
"""
