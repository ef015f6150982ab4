# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: binding=False, always_allow_keywords=False
"""The lines of delivered messages: the compiled twin of delivered_lines.pure_lines."""

from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize, PyBytes_Size
from cpython.long cimport PyLong_AsLongLong
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.stdlib cimport free, getenv, malloc
from libc.string cimport memcpy, strcmp

if getenv("JETSTREAM_PURE") != NULL and strcmp(getenv("JETSTREAM_PURE"), "0") != 0:
    raise ImportError("JETSTREAM_PURE is set")


cdef extern from "Python.h":
    # With bare pointers: tuples and lists keep what they hold, and nothing counts it in between.
    PyObject* list_item "PyList_GetItem"(list, Py_ssize_t) except NULL
    PyObject* tuple_item "PyTuple_GetItem"(PyObject*, Py_ssize_t) except NULL
    int64_t number_of "PyLong_AsLongLong"(PyObject*) except? -1
    const char* text_of "PyBytes_AsString"(PyObject*) except NULL
    Py_ssize_t length_of "PyBytes_Size"(PyObject*) except -1


cdef struct Message:
    int64_t count
    int64_t offset
    int64_t sequence
    int64_t appended_us
    int64_t pending
    const char* subject
    const char* value
    const char* headers
    Py_ssize_t subject_length
    Py_ssize_t value_length
    Py_ssize_t headers_length


cdef inline int _digits(int64_t number) noexcept nogil:
    cdef int digits = 1
    while number >= 10:
        number = number // 10
        digits += 1
    return digits


cdef inline char* _put_number(char* out, int64_t number) noexcept nogil:
    cdef int digits = _digits(number)
    cdef int at
    for at in range(digits - 1, -1, -1):
        out[at] = <char>(48 + number % 10)
        number = number // 10
    return out + digits


cdef inline char* _put(char* out, const char* text, Py_ssize_t length) noexcept nogil:
    memcpy(out, text, length)
    return out + length


cdef int _read(PyObject* delivery, Message* message) except -1:
    cdef PyObject* record = tuple_item(delivery, 0)
    cdef PyObject* item
    message.count = number_of(tuple_item(delivery, 1))
    message.sequence = number_of(tuple_item(delivery, 2))
    message.pending = number_of(tuple_item(delivery, 3))
    message.offset = number_of(tuple_item(record, 0))
    message.appended_us = number_of(tuple_item(record, 1))
    if (
        message.count < 0 or message.sequence < 0 or message.pending < 0 or message.offset < 0
        or message.appended_us < 0
    ):
        raise ValueError("a number is negative")
    item = tuple_item(record, 2)
    message.subject, message.subject_length = text_of(item), length_of(item)
    item = tuple_item(record, 3)
    message.value, message.value_length = text_of(item), length_of(item)
    item = tuple_item(record, 4)
    message.headers, message.headers_length = text_of(item), length_of(item)
    return 0


cdef inline Py_ssize_t _length(const Message* message) noexcept nogil:
    """Of a line and its payload, without what all have."""
    cdef Py_ssize_t payload = message.headers_length + message.value_length
    cdef Py_ssize_t length = _digits(message.count) + _digits(message.offset + 1)
    length += _digits(message.sequence) + _digits(message.appended_us) + _digits(message.pending)
    length += message.subject_length + payload + _digits(payload)
    if message.headers_length:
        length += 1 + _digits(message.headers_length)
    return length


def lines(list deliveries not None, bytes head not None, bytes behind not None, bytes queue not None):
    """Has the interface of delivered_lines.pure_lines."""
    cdef Py_ssize_t count = len(deliveries), at, length = 0
    cdef Py_ssize_t head_length = PyBytes_Size(head), behind_length = PyBytes_Size(behind)
    cdef Py_ssize_t queue_length = PyBytes_Size(queue)
    cdef const char* head_text = PyBytes_AsString(head)
    cdef const char* behind_text = PyBytes_AsString(behind)
    cdef const char* queue_text = PyBytes_AsString(queue)
    cdef Message* messages
    cdef Message* message
    cdef bytes found
    cdef char* out
    if count == 0:
        return b""
    messages = <Message*>malloc(count * sizeof(Message))
    if messages == NULL:
        raise MemoryError()
    try:
        for at in range(count):
            _read(list_item(deliveries, at), messages + at)
            length += _length(messages + at)
        # The verb and its space, four dots, 000, @, a space, two line ends.
        length += count * (5 + 4 + 3 + 1 + 1 + 4 + head_length + behind_length + queue_length)
        found = PyBytes_FromStringAndSize(NULL, length)
        out = PyBytes_AsString(found)
        for at in range(count):
            message = messages + at
            out = _put(out, b"HMSG " if message.headers_length else b"LMSG ", 5)
            out = _put(out, head_text, head_length)
            out = _put_number(out, message.count)
            out = _put(out, b".", 1)
            out = _put_number(out, message.offset + 1)
            out = _put(out, b".", 1)
            out = _put_number(out, message.sequence)
            out = _put(out, b".", 1)
            out = _put_number(out, message.appended_us)
            out = _put(out, b"000.", 4)
            out = _put_number(out, message.pending)
            out = _put(out, behind_text, behind_length)
            out = _put(out, b"@", 1)
            out = _put(out, message.subject, message.subject_length)
            out = _put(out, queue_text, queue_length)
            if message.headers_length:
                out = _put(out, b" ", 1)
                out = _put_number(out, message.headers_length)
            out = _put(out, b" ", 1)
            out = _put_number(out, message.headers_length + message.value_length)
            out = _put(out, b"\r\n", 2)
            out = _put(out, message.headers, message.headers_length)
            out = _put(out, message.value, message.value_length)
            out = _put(out, b"\r\n", 2)
        return found
    finally:
        free(messages)
