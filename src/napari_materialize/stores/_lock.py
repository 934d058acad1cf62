"""One job at a time in a folder: a file that says who, and a lock of the operating system on it.

The system's lock ends with the process that has it, so a killed job leaves a file and nobody in it.
Some shared file systems have no such locks, or none that reach another machine. There the file
alone counts: what it says is believed as long as the process lives, if it is of this machine, or as
long as the file is touched now and then, if it is of another.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import stat
import sys
import time
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from napari_materialize.stores._places import TEMPORARY

__all__ = ["BEAT", "STALE", "FolderLock", "Owner", "TakenError"]

BEAT = 15.0
"""Seconds between the signs of life of a job."""

STALE = 180.0
"""Seconds without one after which a job of another machine is taken for dead."""

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""What a file system without locks answers."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has taken a store."""

    host: str
    """The machine's name, for people."""

    space: str
    """Text that is equal where process numbers mean the same."""

    pid: int
    started: str
    """When the process began, as its system says; empty where it does not say."""

    since: str
    """When the store was taken."""

    token: str
    """No other taking has it."""

    @classmethod
    def me(cls) -> Owner:
        """Return this process, as of now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        pid = os.getpid()
        return cls(socket.gethostname(), _space(), pid, _started(pid), now, secrets.token_hex(8))

    @classmethod
    def parse(cls, data: bytes) -> Owner | None:
        """Return what a file says; None if it does not say."""
        try:
            value = json.loads(data)
            made = cls(**{each.name: value[each.name] for each in fields(cls)})
        except (ValueError, KeyError, TypeError):
            return None
        texts = (made.host, made.space, made.started, made.since, made.token)
        fit = type(made.pid) is int and all(isinstance(text, str) for text in texts)
        return made if fit else None

    def dump(self) -> bytes:
        """Return what `parse` reads."""
        return json.dumps(asdict(self)).encode()

    def __str__(self) -> str:
        """Return who it is, for a sentence."""
        return f"process {self.pid} on {self.host}, since {self.since}"

    @property
    def is_here(self) -> bool:
        """Whether it is of this machine, so that one can see whether it lives."""
        return self.space == _space()

    @property
    def lives(self) -> bool:
        """Whether a process of this machine still runs; another with its number does not count."""
        if sys.platform == "win32":
            return True  # one cannot ask without harm; signs of life tell
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True  # somebody else's
        return not self.started or _started(self.pid) == self.started


class TakenError(Exception):
    """Somebody has it: `owner`, if that is known."""

    def __init__(self, owner: Owner | None) -> None:
        super().__init__()
        self.owner = owner

    def __str__(self) -> str:
        """Return who has it, for a sentence."""
        return "another process" if self.owner is None else str(self.owner)


class FolderLock:
    """The lock file ``path``, taken or not."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None
        self._owner: Owner | None = None

    @property
    def taken(self) -> bool:
        """Whether it was taken through this object and not given back."""
        return self._owner is not None

    def holder(self) -> TakenError | None:
        """Return who has it now, or None; nothing is changed."""
        try:
            file = _open(self._path)
        except FileNotFoundError:
            return None
        try:
            return _held(file, self._path, _lock(file))
        finally:
            os.close(file)

    def take(self) -> None:
        """Take it.

        Raises
        ------
        TakenError
            If somebody has it.
        OSError
            If the file cannot be made.
        """
        while self._owner is None:
            file = _open(self._path, os.O_CREAT)
            try:
                locked = _lock(file)
                if not _is_at(file, self._path):
                    continue  # it was given back meanwhile
                if locked is None:
                    self._take_by_name(file)
                    return
                if (held := _held(file, self._path, locked)) is not None:
                    raise held
                owner = Owner.me()
                os.ftruncate(file, 0)
                os.lseek(file, 0, os.SEEK_SET)
                os.write(file, owner.dump())
                self._file, self._owner = file, owner
            finally:
                if self._file != file:
                    os.close(file)

    def _take_by_name(self, file: int) -> None:
        """Take it where there are no locks: by a name that only one can give."""
        if os.fstat(file).st_size and (held := _held(file, self._path, None)) is not None:
            raise held
        owner = Owner.me()
        mine = Path(self._path).with_name(f"{TEMPORARY}{owner.token}")
        mine.write_bytes(owner.dump())
        before = _read(file)
        # whoever comes between is replaced or replaces: the one whose name stays has it
        try:
            mine.replace(self._path)
        except FileNotFoundError:  # swept by who has it
            raise TakenError(before) from None
        time.sleep(0.2)
        now = Owner.parse(Path(self._path).read_bytes())
        if now is None or now.token != owner.token:
            raise TakenError(now or before)
        self._owner = owner

    def beat(self) -> None:
        """Give a sign of life.

        Raises
        ------
        TakenError
            If somebody else has taken it meanwhile.
        OSError
            If it is gone.
        """
        if self._owner is None:
            return
        now = Owner.parse(Path(self._path).read_bytes())
        if now is None or now.token != self._owner.token:
            raise TakenError(now)
        os.utime(self._path)

    def release(self) -> None:
        """Give it back, if it is still ours."""
        owner, self._owner = self._owner, None
        if owner is None:
            return
        try:
            with contextlib.suppress(FileNotFoundError):  # removed with the folder: that is told
                now = Owner.parse(Path(self._path).read_bytes())
                if now is not None and now.token == owner.token:
                    Path(self._path).unlink()
        finally:
            if self._file is not None:
                os.close(self._file)
                self._file = None


_OWN = os.O_RDWR
for _name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"):
    _OWN |= getattr(os, _name, 0)


def _open(path: str, flags: int = 0) -> int:
    """Open the lock's file itself: what a link led to would be emptied, a pipe waited for.

    Raises
    ------
    OSError
        If something else is in its place, or it is not there and not made.
    """
    try:
        file = os.open(path, _OWN | flags, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link is in its place; remove the link") from error
        raise
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "something that is no file is in its place; remove that")


def _lock(file: int) -> bool | None:
    """Lock an open file: whether nobody else has; None where there are no locks."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _held(file: int, path: str, locked: bool | None) -> TakenError | None:
    """Return who has the file, as far as can be known."""
    owner = _read(file)
    if locked is False:
        return TakenError(owner)
    if owner is None or (owner.is_here and (locked or not owner.lives)):
        return None
    if owner.is_here and sys.platform != "win32":
        return TakenError(owner)
    return TakenError(owner) if _age(file, path) < STALE else None


def _read(file: int) -> Owner | None:
    os.lseek(file, 0, os.SEEK_SET)
    return Owner.parse(os.read(file, 65536))


def _is_at(file: int, path: str) -> bool:
    """Whether an open file is the one under a name."""
    try:
        there, here = os.stat(path), os.fstat(file)  # noqa: PTH116 - faster than Path
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _age(file: int, path: str) -> float:
    """Return the seconds since a file was touched, by the clock of its file system."""
    import tempfile  # only where somebody else's lock is met

    try:
        with tempfile.NamedTemporaryFile(dir=Path(path).parent, prefix=TEMPORARY) as now:
            return os.fstat(now.fileno()).st_mtime - os.fstat(file).st_mtime
    except OSError:
        return time.time() - os.fstat(file).st_mtime


def _space() -> str:
    """Return what tells this machine, as it was started, and its process numbers from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str:
    """Return when a process began, where the system says: its number may be used again."""
    try:
        # the name before it may hold anything, brackets too
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
