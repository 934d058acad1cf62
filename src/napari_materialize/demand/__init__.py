"""Who wants a chunk, and which chunk is next. Decides; computes, stores and locks nothing.

A `Queue` holds *jobs* over opaque keys. Everybody who wants a key holds a `Claim` on its job, and
a job that needs other jobs' results holds claims on those. A job's *rank* is the best of its
claims' ranks, and a rank is ``(class, priority, level, sequence)``, lowest first:

* class: a job that a client waits for comes before every job that only background work waits for;
* priority: 0 unless the claimer says otherwise, the same for everybody;
* level: finest first;
* sequence: first asked, first served. It is taken when the claim is made and kept.

A claim that a job holds on its inputs has the rank of that job, always, so that inputs inherit
class and place, and lose them again.

A job is in one of five phases::

    WAITING    asked for; its inputs are not asked for yet
    BOUND      it will be computed along with another that waits, unless a client asks for it
    BLOCKED    its inputs are asked for and not all there
    RUNNABLE   nothing is missing but a slot
    RUNNING    somebody computes it

Every method is plain and synchronous; whoever calls holds whatever lock there is (`engine`). What a
chunk's bytes are, and whether they are here already, is the business of `cache`.
"""

from napari_materialize.demand._jobs import Claim, Finished, Phase, Request
from napari_materialize.demand._queue import Queue

__all__ = ["Claim", "Finished", "Phase", "Queue", "Request"]
