"""A process that runs one way to a result, whenever it is told to, and says how long it took.

    python bench/_worker.py NAME

Reads lines of JSON (``case``, ``source``, ``out``) and answers each with one. What is imported
is imported by a first small run that nobody measures, so times are of the work alone.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
# `queue.py` beside this file must not be taken for the standard library's
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]


def _cpu() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


def _system(name: str):
    sys.path.append(str(HERE))
    if name == "limit":
        from _limit import run

        return run
    if name in ("ours", "command line"):
        from _ours import command_line, ours

        return ours if name == "ours" else command_line
    from _peers import SYSTEMS

    return SYSTEMS[name]


def main() -> None:
    system = _system(sys.argv[1])
    from _cases import Case

    # whatever a library prints must not be taken for an answer
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        told = json.loads(line)
        case = Case.from_json(told["case"])
        began, cpu = time.perf_counter(), _cpu()
        try:
            system(case, Path(told["source"]), Path(told["out"]))
        except Exception as error:  # noqa: BLE001 - told, and the row says so
            if type(error).__name__ != "CannotError":
                traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"}
        else:
            found = {"seconds": time.perf_counter() - began, "cpu": _cpu() - cpu}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
