"""What every face that shows a view needs: pictures while chunks are missing, and their claims.

Owns what is the same for a napari layer and for a notebook panel: which chunks a picture takes, how
it is put together of what is there, which claims are held for it, which contrast limits it starts
with, and the engine that is shared when none is given. It draws nothing and knows no Qt, no napari
and no notebook; when to look and when to paint is a face's business.
"""

from napari_materialize.looking._held import AT_A_TIME, LAST, Held, Place, failure
from napari_materialize.looking._lease import Lease
from napari_materialize.looking._limits import first_limits, limits_of, sample
from napari_materialize.looking._picture import Axes, compose, covered, covering, nearest_first

__all__ = [
    "AT_A_TIME",
    "LAST",
    "Axes",
    "Held",
    "Lease",
    "Place",
    "compose",
    "covered",
    "covering",
    "failure",
    "first_limits",
    "limits_of",
    "nearest_first",
    "sample",
]
