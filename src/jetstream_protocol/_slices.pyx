# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: binding=False, always_allow_keywords=False
"""Cuts rows out of a column of byte strings: the compiled twin of columns.pure_slices."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.list cimport PyList_New
from cpython.object cimport PyObject
from libc.stdint cimport int32_t
from libc.stdlib cimport getenv
from libc.string cimport strcmp

if getenv("JETSTREAM_PURE") != NULL and strcmp(getenv("JETSTREAM_PURE"), "0") != 0:
    raise ImportError("JETSTREAM_PURE is set")


cdef extern from "Python.h":
    # With bare pointers: the list takes over each reference, and nothing counts them in between.
    PyObject* new_bytes "PyBytes_FromStringAndSize"(const char*, Py_ssize_t) except NULL
    int set_item "PyList_SetItem"(list, Py_ssize_t, PyObject*) except -1


cdef bint _grow(const int32_t* offsets, Py_ssize_t count) noexcept:
    cdef Py_ssize_t at
    if offsets[0] != 0:
        return False
    for at in range(count):
        if offsets[at + 1] < offsets[at]:
            return False
    return True


def offsets_grow(body, Py_ssize_t offsets_at, Py_ssize_t count):
    """Whether the `count + 1` offsets of a column start at 0 and never fall."""
    cdef Py_buffer view
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if count < 0 or offsets_at < 0 or offsets_at + 4 * (count + 1) > view.len:
            raise ValueError("the column does not lie within the body")
        return _grow(<const int32_t*>(<const char*>view.buf + offsets_at), count)
    finally:
        PyBuffer_Release(&view)


def slices(body, Py_ssize_t offsets_at, Py_ssize_t data_at, Py_ssize_t count):
    """The items of a column of byte strings; None if its offsets do not start at 0 or ever fall.

    The column must lie within `body`, which Layout ensures: `count + 1` offsets, and as much data
    as the last offset says. Raises ValueError otherwise.
    """
    cdef Py_buffer view
    cdef const int32_t* offsets
    cdef const char* data
    cdef list items
    cdef Py_ssize_t at
    cdef int32_t start, stop
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if (
            count < 0
            or offsets_at < 0
            or data_at < 0
            or offsets_at + 4 * (count + 1) > view.len
        ):
            raise ValueError("the column does not lie within the body")
        offsets = <const int32_t*>(<const char*>view.buf + offsets_at)
        data = <const char*>view.buf + data_at
        if not _grow(offsets, count):
            return None
        if data_at + offsets[count] > view.len:
            raise ValueError("the column does not lie within the body")
        items = PyList_New(count)
        start = 0
        for at in range(count):
            stop = offsets[at + 1]
            set_item(items, at, new_bytes(data + start, stop - start))
            start = stop
        return items
    finally:
        PyBuffer_Release(&view)
