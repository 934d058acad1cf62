"""Sessions of onnxruntime, and the only importer of it.

Owns one session per model, device and number of threads, shared by every op and thread that asks
for the same and gone with the last of them; which providers there are; and what onnxruntime says
when it fails, in one line.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from napari_materialize.errors import ModelError
from napari_materialize.ops._model_reasons import why_failed, why_not_loaded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from napari_materialize.ops._model_file import ModelFile

__all__ = ["Runtime"]

_CUDA = "CUDAExecutionProvider"

_WEIGHTS = "session.model_external_initializers_file_folder_path"

ADVICE = "install the extra gpu (onnxruntime-gpu with CUDA and cuDNN), or give device=cpu"


class Runtime:
    """A model loaded by onnxruntime on one device. Safe to use from several threads."""

    _all: ClassVar[weakref.WeakValueDictionary[tuple[str, str, int, str], Runtime]] = (
        weakref.WeakValueDictionary()
    )
    _lock: ClassVar = threading.Lock()

    def __init__(self, file: ModelFile, data: bytes, device: str, threads: int = 1) -> None:
        self.place = f"onnx: {file.path.name}"
        self.missing: str | None = None
        """Why the device that was asked for is not used; None if it is."""
        self._weights = str(file.path.parent) if file.external else None
        """The folder of the weights in other files."""
        self._kinds = file.graph.kinds
        self.session = self._load(data, device, threads)
        self.on_gpu = _CUDA in self.providers
        self._number = int(device.partition(":")[2] or 0)

    def _load(self, model: bytes, device: str, threads: int) -> Any:
        """Load the model, on the CPU where the device is not there."""
        if device == "cpu" or (device == "auto" and not _driver()):
            return self._session(model, threads, ["CPUExecutionProvider"])
        import onnxruntime  # type: ignore[import-untyped]  # it ships no types

        known = onnxruntime.get_available_providers()
        if _CUDA not in known:
            self.missing = f"onnxruntime has no {_CUDA} here, only {', '.join(known)}; {ADVICE}"
            return self._session(model, threads, ["CPUExecutionProvider"])
        options = {"device_id": int(device.partition(":")[2] or 0)}
        with _quiet_start():
            session = self._session(model, threads, [(_CUDA, options), "CPUExecutionProvider"])
        if _CUDA not in session.get_providers():
            self.missing = (
                f"onnxruntime could not start {_CUDA} and runs on "
                f"{', '.join(session.get_providers())}; {ADVICE}"
            )
        return session

    def _session(self, model: bytes, threads: int, providers: list[Any]) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # block shapes vary
        options.log_severity_level = 4  # every error is also raised
        # no thread spins while it waits: other slots have the core
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self._weights is not None:
            options.add_session_config_entry(_WEIGHTS, self._weights)
        try:
            return onnxruntime.InferenceSession(model, options, providers=providers)
        except Exception as error:
            raise ModelError(
                f"{self.place} cannot be loaded by onnxruntime {onnxruntime.__version__}: "
                f"{why_not_loaded(error, self._kinds)}"
            ) from error

    @classmethod
    def of(
        cls, file: ModelFile, data: bytes, device: str, threads: int = 1, changed: str = ""
    ) -> Runtime:
        """Return the runtime of a model and a device, made once.

        ``changed`` is a name for what ``data`` differs in from the file.
        """
        key = (file.digest, device, threads, changed)
        with cls._lock:
            found = cls._all.get(key)
            if found is None:
                found = cls._all[key] = cls(file, data, device, threads)
            return found

    @property
    def inputs(self) -> list[Any]:
        """The inputs that must be given, as onnxruntime describes them."""
        return list(self.session.get_inputs())

    @property
    def outputs(self) -> list[Any]:
        """The outputs, as onnxruntime describes them."""
        return list(self.session.get_outputs())

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers that onnxruntime says it uses, first choice first."""
        return tuple(self.session.get_providers())

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda:0``: where it runs, as read back."""
        return f"cuda:{self._number}" if self.on_gpu else "cpu"

    def run(self, tile: np.ndarray, source: str, target: str) -> np.ndarray:
        """Run the model on an array laid out as it takes it, from one input to one output."""
        try:
            if self.on_gpu:
                return self._run_bound(tile, source, target)
            (result,) = self.session.run([target], {source: tile})
        except Exception as error:
            shape = " x ".join(map(str, tile.shape))
            raise ModelError(
                f"{self.place} fails on a block of {shape}: {why_failed(error)}; if it needs sides "
                "that are multiples of a number, give it: multiple=8 or another"
            ) from error
        return np.asarray(result)

    def _run_bound(self, tile: np.ndarray, source: str, target: str) -> np.ndarray:
        """Run with input and output bound to the GPU's memory, so that each is copied once.

        No test of this project has run it: it needs a GPU.
        """
        import onnxruntime

        binding = self.session.io_binding()
        there = onnxruntime.OrtValue.ortvalue_from_numpy(tile, "cuda", self._number)
        binding.bind_ortvalue_input(source, there)
        binding.bind_output(target, "cuda", self._number)
        self.session.run_with_iobinding(binding)
        return np.asarray(binding.copy_outputs_to_cpu()[0])


def _driver() -> bool:
    """Whether an NVIDIA driver is there; asking onnxruntime costs a page of log lines if not."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Load CUDA's libraries, and keep the page of native log lines about missing ones to ourselves.

    What is missing is said afterwards, in one sentence.
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
        yield
    finally:
        onnxruntime.set_default_logger_severity(2)  # onnxruntime's own default: warnings
