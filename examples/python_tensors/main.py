"""Tensors of NumPy, PyTorch and CuPy, moved by wharf without a copy in between: see lib.rs. python3 main.py LIBRARY [NAME ...]

Each library that can be imported is tried; those that are named must be there."""

import ctypes
import gc
import importlib
import sys

library = ctypes.CDLL(sys.argv[1])
library.tensors_open.restype = ctypes.c_void_p
library.tensors_open.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
library.tensors_send.restype = ctypes.c_void_p
library.tensors_send.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_bool]
library.tensors_send_array.restype = ctypes.c_void_p
library.tensors_send_array.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t] + [
    ctypes.c_void_p] * 3 + [ctypes.c_bool]
library.tensors_free.argtypes = [ctypes.c_void_p]
library.tensors_close.restype = ctypes.c_void_p
library.tensors_close.argtypes = [ctypes.c_void_p]

python = ctypes.pythonapi
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
# Capsules keep the pointer, not the text.
USED = {False: b"used_dltensor", True: b"used_dltensor_versioned"}
FRESH = {False: b"dltensor", True: b"dltensor_versioned"}


def check(text):
    if text:
        said = ctypes.string_at(text).decode()
        library.tensors_free(text)
        raise RuntimeError(said)


def taken(tensor, versioned):
    """The pointer in a tensor's capsule, which is the library's then. The call waits for what the producer has still to write."""
    options = {"max_version": (1, 1)} if versioned else {}
    capsule = tensor.__dlpack__(**options)
    pointer = python.PyCapsule_GetPointer(capsule, FRESH[versioned])
    python.PyCapsule_SetName(capsule, USED[versioned])
    return pointer


def send(session, source, target, versioned):
    check(library.tensors_send(session, taken(source, versioned), taken(target, versioned), versioned))


def send_array(session, source, target, versioned):
    said = getattr(source, "__cuda_array_interface__", None) or source.__array_interface__
    numbers = ctypes.c_int64 * len(said["shape"])
    shape, strides = numbers(*said["shape"]), said.get("strides")
    strides = numbers(*strides) if strides else None
    check(library.tensors_send_array(session, said["data"][0], said["typestr"].encode(), len(said["shape"]), shape, strides,
                                     taken(target, versioned), versioned))


def has_versions(tensor):
    try:
        capsule = tensor.__dlpack__(max_version=(1, 1))
        return python.PyCapsule_GetPointer(capsule, FRESH[True]) is not None
    except (TypeError, ValueError):
        return False


def numpy_arrays(numpy):
    yield "numpy, host", lambda count, fill: numpy.arange(count, dtype="float32") if fill else numpy.zeros(count, dtype="float32"), numpy.asarray


def torch_tensors(torch):
    def of(device):
        def make(count, fill):
            made = torch.arange(count, dtype=torch.float32, device=device) if fill else torch.zeros(count, dtype=torch.float32, device=device)
            if device == "cuda":
                torch.cuda.synchronize()
            return made
        return make

    yield "torch, host", of("cpu"), lambda tensor: tensor.numpy()
    if torch.cuda.is_available():
        yield "torch, " + torch.cuda.get_device_name(), of("cuda"), lambda tensor: tensor.cpu().numpy()


def cupy_arrays(cupy):
    def make(count, fill):
        made = cupy.arange(count, dtype="float32") if fill else cupy.zeros(count, dtype="float32")
        cupy.cuda.Device().synchronize()
        return made

    if cupy.cuda.is_available():
        yield "cupy, " + cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), make, cupy.asnumpy


def main():
    error = ctypes.c_void_p()
    session = library.tensors_open(ctypes.byref(error))
    check(error.value)
    for name, arrays in ("numpy", numpy_arrays), ("torch", torch_tensors), ("cupy", cupy_arrays):
        try:
            module = importlib.import_module(name)
        except ImportError as absent:
            if name in sys.argv[2:]:
                raise
            print(f"{name}: not here: {absent}")
            continue
        for what, make, read in arrays(module):
            ways = [(send, False, "dlpack")]
            if has_versions(make(1, True)):
                ways.append((send, True, "dlpack with versions"))
            if hasattr(make(1, True), "__cuda_array_interface__") or hasattr(make(1, True), "__array_interface__"):
                ways.append((send_array, False, "array interface"))
            for way, versioned, called in ways:
                for count in 1, 1000, 1 << 22:
                    source, target = make(count, True), make(count, False)
                    way(session, source, target, versioned)
                    assert (read(target) == read(source)).all() and read(target)[-1] == count - 1, (what, called, count)
                    # What does not lie in one run is refused, and lent back.
                    if way is send and count == 1000:
                        try:
                            send(session, source[::2], target[::2], versioned)
                        except RuntimeError as refused:
                            assert "one run" in str(refused), refused
                        else:
                            raise AssertionError("strides were not looked at")
                    del source, target
            gc.collect()
            print(f"{what}: {', '.join(called for _, _, called in ways)}: the same bytes")
    check(library.tensors_close(session))


main()
