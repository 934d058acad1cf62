"""Ops: functions of a block, each with a halo, and the registry that names them."""
