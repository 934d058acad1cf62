"""Readers and validators that live outside this project's environment, and what they are shown.

``corpus`` writes one result of every kind and says what is in it. ``tools`` sets up an environment
of Python (its packages pin others than ours) and one of node, under ``.dev/outside``, and hands
a corpus to the programs that run there: ``readers.py``, ``validators.py``, ``read.mjs``. Each
prints one JSON object: for every result ``equal`` or ``valid``, or what it has against it.
"""
