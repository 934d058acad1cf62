"""``python -m napari_materialize``: the command line, where its script is not on the path."""

import sys

from napari_materialize.cli import main

if __name__ == "__main__":
    sys.exit(main())
