# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: binding=False, always_allow_keywords=False
"""The lines of delivered messages, and plain acknowledgements of them: the compiled twin of
delivered_lines.pure_lines and acknowledged.pure_acknowledged."""

from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize, PyBytes_Size
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, getenv, malloc
from libc.string cimport memcmp, memcpy, strcmp

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


cdef inline char* _put_subject(char* out, const char* text, Py_ssize_t length) noexcept nogil:
    cdef const uint8_t* subject = <const uint8_t*>text
    cdef Py_ssize_t at
    for at in range(length):
        out[at] = <char>(subject[at] if subject[at] > 32 and subject[at] != 127 else 63)
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
            out = _put_subject(out, message.subject, message.subject_length)
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


# Acknowledgements.


cdef inline bint _is_number(const uint8_t* text, Py_ssize_t length, int most) noexcept nogil:
    cdef Py_ssize_t at
    if length == 0 or length > most:
        return False
    for at in range(length):
        if text[at] < 48 or text[at] > 57:
            return False
    return True


def acknowledged(bytes data not None, Py_ssize_t position):
    """Has the interface of acknowledged.pure_acknowledged."""
    cdef const uint8_t* text = <const uint8_t*>PyBytes_AsString(data)
    cdef Py_ssize_t end = PyBytes_Size(data)
    cdef Py_ssize_t at, field, stop
    cdef Py_ssize_t starts[13]
    cdef int64_t sequence
    cdef bint is_plain
    cdef Py_ssize_t before = -1, before_length = 0, mark = -1, mark_length = 0
    cdef list found = [], sequences = None
    while position + 13 < end and memcmp(text + position, b"LMSG $JS.ACK.", 13) == 0:
        # The tokens behind $JS: ACK, domain, account, stream, consumer, five numbers, mark.
        field, at = 0, position + 8
        is_plain = True
        while at < end and text[at] != 32:
            if text[at] == 46:
                if field == 11 or (field and at == starts[field - 1] + 1):
                    is_plain = False
                    break
                starts[field] = at
                field += 1
            elif text[at] < 32:
                is_plain = False
                break
            at += 1
        if not is_plain or field != 11 or at == starts[10] + 1:
            break
        for field in range(5, 10):
            stop = starts[field + 1] - starts[field] - 1
            if not _is_number(text + starts[field] + 1, stop, 18 if field == 6 else 19):
                is_plain = False
        if not is_plain:
            break
        if at + 5 <= end and memcmp(text + at, b" 0\r\n\r\n", 4) == 0:
            stop = at + 4
        elif at + 8 <= end and memcmp(text + at, b" 4\r\n+ACK", 8) == 0:
            stop = at + 8
        else:
            break
        if stop + 2 > end or text[stop] != 13 or text[stop + 1] != 10:
            break
        sequence = 0
        for field in range(starts[6] + 1, starts[7]):
            sequence = sequence * 10 + (text[field] - 48)
        if (
            sequences is None
            or before_length != starts[5] - position - 5
            or memcmp(text + position + 5, text + before, before_length) != 0
            or mark_length != at - starts[10] - 1
            or memcmp(text + starts[10] + 1, text + mark, mark_length) != 0
        ):
            before, before_length = position + 5, starts[5] - position - 5
            mark, mark_length = starts[10] + 1, at - starts[10] - 1
            sequences = []
            found.append((data[before : before + before_length], data[mark : mark + mark_length],
                          sequences))
        sequences.append(sequence)
        position = stop + 2
    return found, position
