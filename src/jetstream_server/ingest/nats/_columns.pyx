# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: binding=False, always_allow_keywords=False
# cython: initializedcheck=False
"""The compiled twin of gathering.py, delivery.py and of replies.py's Replies.

A delivery is a table of positions in the bytes that were read. From it a batch body is built with
one copy of each value, and acks are formatted from the replies, without a Python object per
message. Lists of objects are made only for callers that need them.
"""

from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize, PyBytes_Size
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, getenv, malloc, realloc
from libc.string cimport memcmp, memcpy, memset, strcmp

from jetstream_protocol.batch import seal
from jetstream_protocol.columns import Flags
from jetstream_protocol.envelope import COOKIE

if getenv("JETSTREAM_PURE") != NULL and strcmp(getenv("JETSTREAM_PURE"), "0") != 0:
    raise ImportError("JETSTREAM_PURE is set")

cdef uint8_t _COOKIE_START = COOKIE[0]
# The same as in gathering.py, which cannot be imported here because it imports this.
cdef int64_t _PAYLOAD_BYTES_MAX = 64 * 1024 * 1024
cdef int _SUBJECT_COLUMN = int(Flags.SUBJECT_COLUMN)
cdef int _FIELDS_MAX = 6


cdef struct Message:
    # Positions and lengths in the bytes of the read. The header block ends where the value begins.
    int32_t subject
    int32_t subject_length
    int32_t reply
    int32_t reply_length
    int32_t block_length
    int32_t value
    int32_t value_length


cdef enum Field:
    SUBJECT
    REPLY
    HEADER_BLOCK
    VALUE


cdef struct Part:
    int32_t start
    int32_t length


cdef inline Part _part(const Message* message, Field field) noexcept nogil:
    """Position and length of a field of a message."""
    cdef Part part
    if field == SUBJECT:
        part.start, part.length = message.subject, message.subject_length
    elif field == REPLY:
        part.start, part.length = message.reply, message.reply_length
    elif field == HEADER_BLOCK:
        part.start = message.value - message.block_length
        part.length = message.block_length
    else:
        part.start, part.length = message.value, message.value_length
    return part


cdef inline Py_ssize_t _padded(Py_ssize_t length) noexcept nogil:
    return (length + 7) & ~(<Py_ssize_t>7)


cdef inline void _pad(char* column, Py_ssize_t length) noexcept nogil:
    """Write zeros after a column, up to the next multiple of 8."""
    memset(column + length, 0, _padded(length) - length)


cdef inline Py_ssize_t _column_length(Py_ssize_t count, Py_ssize_t data_length) noexcept nogil:
    """Bytes of a column of byte strings: offsets and data."""
    return _padded(4 * (count + 1)) + _padded(data_length)


cdef inline int64_t _number(const uint8_t* text, Py_ssize_t length) noexcept nogil:
    """Parse a length field; -1 when it is invalid or out of bounds."""
    cdef int64_t number = 0
    cdef Py_ssize_t at
    if length == 0 or length > 8:
        return -1
    for at in range(length):
        if text[at] < 48 or text[at] > 57:
            return -1
        number = number * 10 + (text[at] - 48)
    return number if number <= _PAYLOAD_BYTES_MAX else -1


cdef inline int64_t _sid_number(const uint8_t* text, Py_ssize_t length) noexcept nogil:
    """Parse a subscription id; -1 when it cannot be one of ours."""
    cdef int64_t number = 0
    cdef Py_ssize_t at
    if length == 0 or length > 18 or text[0] == 48:
        return -1
    for at in range(length):
        if text[at] < 48 or text[at] > 57:
            return -1
        number = number * 10 + (text[at] - 48)
    return number


cdef inline bint _is_plain_text(const uint8_t* text, Py_ssize_t length) noexcept nogil:
    """Whether it is ASCII without control characters."""
    cdef Py_ssize_t at
    cdef uint8_t others = 0
    for at in range(length):
        others |= <uint8_t>(text[at] - 32) >= 95
    return not others


cdef class Columns:
    """Messages of one subscription. Has the interface of delivery.Delivery."""

    cdef readonly int64_t sid
    cdef readonly bint may_be_enveloped
    cdef bytes _data
    cdef Message* _messages
    cdef Py_ssize_t _count, _room
    cdef Py_ssize_t _value_bytes, _reply_count
    cdef bint _has_blocks, _one_subject
    cdef list _subjects, _replies, _values, _header_blocks

    def __cinit__(self):
        self._messages = NULL

    def __dealloc__(self):
        free(self._messages)

    cdef int _add(self, Message* message, const uint8_t* data) except -1:
        cdef Py_ssize_t room
        cdef Message* grown
        if self._count == self._room:
            room = self._room * 2 if self._room else 16
            grown = <Message*>realloc(self._messages, room * sizeof(Message))
            if grown == NULL:
                raise MemoryError()
            self._messages, self._room = grown, room
        self._messages[self._count] = message[0]
        self._one_subject = self._one_subject and self._has_first_subject(message, data)
        self._count += 1
        self._value_bytes += message.value_length
        self._reply_count += message.reply_length > 0
        if message.block_length:
            self._has_blocks = True
        if message.value_length and data[message.value] == _COOKIE_START:
            self.may_be_enveloped = True
        return 0

    cdef inline bint _has_first_subject(self, Message* message, const uint8_t* data) noexcept:
        cdef Message* first = self._messages
        return message.subject_length == first.subject_length and (
            memcmp(data + message.subject, data + first.subject, first.subject_length) == 0
        )

    def remove_prefix(self, Py_ssize_t length):
        """Remove the first `length` bytes of each subject."""
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AsString(self._data)
        cdef Py_ssize_t at
        cdef int32_t removed
        cdef Message* message
        self._subjects = None
        self._one_subject = True
        for at in range(self._count):
            message = self._messages + at
            removed = <int32_t>min(length, message.subject_length)
            message.subject += removed
            message.subject_length -= removed
            self._one_subject = self._one_subject and self._has_first_subject(message, data)

    def __len__(self):
        return self._count

    def __eq__(self, other):
        return all(
            getattr(self, name) == getattr(other, name, None)
            for name in ("header_blocks", "replies", "sid", "subjects", "values")
        )

    __hash__ = None

    def __repr__(self):
        return f"Columns(sid={self.sid}, {self._count} messages)"

    cdef list _list(self, Field field):
        """A list with one object per message."""
        cdef Py_ssize_t at
        cdef Part part
        cdef const char* data = PyBytes_AsString(self._data)
        cdef list found = []
        for at in range(self._count):
            part = _part(self._messages + at, field)
            found.append(PyBytes_FromStringAndSize(data + part.start, part.length))
        return found

    @property
    def subjects(self):
        cdef Part part
        if self._subjects is None:
            if self._one_subject and self._count:
                part = _part(self._messages, SUBJECT)
                self._subjects = [self._data[part.start : part.start + part.length]] * self._count
            else:
                self._subjects = self._list(SUBJECT)
        return self._subjects

    @property
    def replies(self):
        if self._replies is None:
            self._replies = self._list(REPLY)
        return self._replies

    @replies.setter
    def replies(self, list replies not None):
        self._replies = replies

    @property
    def values(self):
        if self._values is None:
            self._values = self._list(VALUE)
        return self._values

    @property
    def header_blocks(self):
        if self._header_blocks is None and self._has_blocks:
            self._header_blocks = self._list(HEADER_BLOCK)
        return self._header_blocks

    @property
    def is_plain(self):
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AsString(self._data)
        cdef Py_ssize_t at
        cdef Py_ssize_t subjects = 1 if self._one_subject else self._count
        cdef Message* message
        if self._has_blocks:
            return False
        for at in range(min(subjects, self._count)):
            message = self._messages + at
            if not _is_plain_text(data + message.subject, message.subject_length):
                return False
        return True

    @property
    def value_bytes(self):
        return self._value_bytes

    def encode(self):
        """Encode a plain delivery as a batch, not yet stamped."""
        cdef Py_ssize_t count = self._count, at, subject_bytes = 0
        cdef Py_ssize_t values_length = _column_length(count, self._value_bytes)
        cdef Py_ssize_t length
        cdef bytes body
        cdef char* out
        cdef Part subject
        if self._one_subject:
            subject = _part(self._messages, SUBJECT)
            length = values_length + _padded(4 + subject.length)
        else:
            for at in range(count):
                subject_bytes += self._messages[at].subject_length
            length = values_length + _column_length(count, subject_bytes)
        body = PyBytes_FromStringAndSize(NULL, length)
        out = PyBytes_AsString(body)
        self._write_column(out, VALUE)
        out += values_length
        if self._one_subject:
            (<uint32_t*>out)[0] = <uint32_t>subject.length
            memcpy(out + 4, PyBytes_AsString(self._data) + subject.start, subject.length)
            _pad(out, 4 + subject.length)
            return seal(0, body, count, count - 1, length)
        self._write_column(out, SUBJECT)
        return seal(_SUBJECT_COLUMN, body, count, count - 1, length)

    cdef int _write_column(self, char* out, Field field) except -1:
        """Write the offsets, then the items back to back, each part padded."""
        cdef const char* data = PyBytes_AsString(self._data)
        cdef Py_ssize_t at, offsets_length = 4 * (self._count + 1)
        cdef int32_t* offsets = <int32_t*>out
        cdef char* items = out + _padded(offsets_length)
        cdef int32_t end = 0
        cdef Part part
        _pad(out, offsets_length)
        offsets[0] = 0
        for at in range(self._count):
            part = _part(self._messages + at, field)
            memcpy(items + end, data + part.start, part.length)
            end += part.length
            offsets[at + 1] = end
        _pad(items, end)
        return 0

    def select(self, policy):
        """The messages that may be answered."""
        if self._replies is not None:
            return policy.select(self._replies)
        return (<ReplyMatcher>policy.matcher)._select(self)


cdef class Gathering:
    """Has the interface of gathering.Gathering."""

    cdef list _order
    cdef dict _by_sid

    def __cinit__(self):
        self._order = []
        self._by_sid = {}

    def take(self, bytes data not None, Py_ssize_t position):
        """Gather the whole messages from `position` on. Returns the position where something else
        begins."""
        cdef const uint8_t* text = <const uint8_t*>PyBytes_AsString(data)
        cdef Py_ssize_t end = PyBytes_Size(data)
        cdef Py_ssize_t starts[6]
        cdef Py_ssize_t lengths[6]
        cdef Py_ssize_t at, line_end, field_start, start, stop
        cdef int fields
        cdef bint has_headers
        cdef int64_t length, header_length, sid
        cdef int64_t current_sid = -1
        cdef Columns current = None
        cdef Message message
        while position + 3 < end:
            # Any other verb than a message's ends the run quickly.
            has_headers = text[position] == b"H"
            if text[position + has_headers] != b"M":
                break
            # The line, split at single spaces.
            fields = 0
            field_start = at = position
            line_end = -1
            while at < end:
                if text[at] == b" ":
                    if fields == _FIELDS_MAX - 1:
                        break
                    starts[fields] = field_start
                    lengths[fields] = at - field_start
                    fields += 1
                    field_start = at + 1
                elif text[at] == b"\r" and at + 1 < end and text[at + 1] == b"\n":
                    line_end = at
                    break
                at += 1
            if line_end < 0:
                break
            starts[fields] = field_start
            lengths[fields] = line_end - field_start
            fields += 1
            if has_headers:
                if lengths[0] != 4 or memcmp(text + position, b"HMSG", 4) != 0:
                    break
                if fields != 5 and fields != 6:
                    break
                header_length = _number(text + starts[fields - 2], lengths[fields - 2])
            else:
                if lengths[0] != 3 or memcmp(text + position, b"MSG", 3) != 0:
                    break
                if fields != 4 and fields != 5:
                    break
                header_length = 0
            length = _number(text + starts[fields - 1], lengths[fields - 1])
            start = line_end + 2
            stop = start + length
            if length < 0 or header_length < 0 or header_length > length:
                break
            if stop + 2 > end or text[stop] != b"\r" or text[stop + 1] != b"\n":
                break
            sid = _sid_number(text + starts[2], lengths[2])
            if sid < 0:
                break
            if sid != current_sid:
                current = self._of(sid, data)
                current_sid = sid
            message.subject = <int32_t>starts[1]
            message.subject_length = <int32_t>lengths[1]
            if fields == (6 if has_headers else 5):
                message.reply = <int32_t>starts[3]
                message.reply_length = <int32_t>lengths[3]
            else:
                message.reply = 0
                message.reply_length = 0
            message.block_length = <int32_t>header_length
            message.value = <int32_t>(start + header_length)
            message.value_length = <int32_t>(length - header_length)
            current._add(&message, text)
            position = stop + 2
        return position

    cdef Columns _of(self, int64_t sid, bytes data):
        cdef Columns columns = self._by_sid.get(sid)
        if columns is None:
            columns = Columns.__new__(Columns)
            columns.sid = sid
            columns._data = data
            columns._one_subject = True
            self._by_sid[sid] = columns
            self._order.append(columns)
        return columns

    def finish(self):
        """Return what was gathered, in the order of each subscription's first message, and begin
        again."""
        cdef list order = self._order
        if order:
            self._order = []
            self._by_sid = {}
        return order


cdef struct Token:
    const uint8_t* text
    Py_ssize_t length
    bint is_last


cdef class ReplyMatcher:
    """The subjects of replies.AckPolicy: the tokens of their patterns, one after the other."""

    cdef list _texts  # They keep what the tokens point to.
    cdef Token* _tokens
    cdef Py_ssize_t _count

    def __cinit__(self, patterns):
        cdef Py_ssize_t at = 0
        cdef bytes text
        self._texts = [token.encode() for pattern in patterns for token in pattern.split(".")]
        self._tokens = <Token*>malloc(max(1, len(self._texts)) * sizeof(Token))
        if self._tokens == NULL:
            raise MemoryError()
        for text in self._texts:
            self._tokens[at] = Token(<const uint8_t*>PyBytes_AsString(text), PyBytes_Size(text), 0)
            at += 1
        for pattern in patterns:
            self._count += pattern.count(".") + 1
            self._tokens[self._count - 1].is_last = True

    def __dealloc__(self):
        free(self._tokens)

    def allows(self, bytes reply not None):
        return self._allows(
            <const uint8_t*>PyBytes_AsString(reply), PyBytes_Size(reply)
        )

    cdef bint _allows(self, const uint8_t* reply, Py_ssize_t length) noexcept:
        cdef Py_ssize_t at = 0
        while at < self._count:
            if _matches(self._tokens + at, reply, length):
                return True
            while not self._tokens[at].is_last:
                at += 1
            at += 1
        return False

    cdef Replies _select(self, Columns columns):
        cdef Replies selected = Replies.__new__(Replies)
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AsString(columns._data)
        cdef Py_ssize_t at, reply_bytes = 0
        cdef Message* message
        if columns._reply_count == 0:
            return selected
        for at in range(columns._count):
            reply_bytes += columns._messages[at].reply_length
        selected._reserve(columns._reply_count, reply_bytes)
        for at in range(columns._count):
            message = columns._messages + at
            if message.reply_length == 0:
                continue
            if self._allows(data + message.reply, message.reply_length):
                selected._add(data + message.reply, message.reply_length, <int32_t>at)
            else:
                selected.refused += 1
        return selected


cdef inline bint _is_special(uint8_t byte) noexcept nogil:
    """Whether no plain subject has this byte: white space, control characters, wildcards."""
    return byte <= 32 or byte == 127 or byte == 42 or byte == 62


cdef bint _matches(const Token* token, const uint8_t* reply, Py_ssize_t length) noexcept nogil:
    """Whether the reply matches the pattern that begins with this token."""
    cdef Py_ssize_t at = 0, start
    while True:
        if token.length == 1 and token.text[0] == b">":
            if at >= length:
                return False
            while at < length:
                if _is_special(reply[at]):
                    return False
                at += 1
            return True
        if token.length == 1 and token.text[0] == b"*":
            start = at
            while at < length and reply[at] != b"." and not _is_special(reply[at]):
                at += 1
            if at == start:
                return False
        else:
            if length - at < token.length or memcmp(reply + at, token.text, token.length) != 0:
                return False
            at += token.length
        if token.is_last:
            return at == length
        if at >= length or reply[at] != b".":
            return False
        at += 1
        token += 1


cdef class Replies:
    """Has the interface of replies.Replies."""

    cdef readonly Py_ssize_t refused
    cdef char* _text
    cdef int32_t* _ends
    cdef int32_t* _positions
    cdef Py_ssize_t _count

    def __cinit__(self):
        self._text = NULL
        self._ends = self._positions = NULL

    def __dealloc__(self):
        free(self._text)
        free(self._ends)
        free(self._positions)

    cdef int _reserve(self, Py_ssize_t count, Py_ssize_t reply_bytes) except -1:
        self._text = <char*>malloc(reply_bytes)
        self._ends = <int32_t*>malloc(count * sizeof(int32_t))
        self._positions = <int32_t*>malloc(count * sizeof(int32_t))
        if self._text == NULL or self._ends == NULL or self._positions == NULL:
            raise MemoryError()
        return 0

    cdef void _add(self, const uint8_t* reply, Py_ssize_t length, int32_t position) noexcept:
        cdef Py_ssize_t start = self._ends[self._count - 1] if self._count else 0
        memcpy(self._text + start, reply, length)
        self._ends[self._count] = <int32_t>(start + length)
        self._positions[self._count] = position
        self._count += 1

    def __len__(self):
        return self._count

    def to_list(self):
        """The replies as objects."""
        cdef Py_ssize_t at, start = 0
        cdef list replies = []
        for at in range(self._count):
            replies.append(PyBytes_FromStringAndSize(self._text + start, self._ends[at] - start))
            start = self._ends[at]
        return replies

    def positions(self):
        """The position of each message in its delivery."""
        cdef Py_ssize_t at
        return [self._positions[at] for at in range(self._count)]

    def acks(self, bytes before not None, bytes after not None, int64_t base_offset):
        """One PUB for each reply: `before`, the sequence (offset + 1), `after`."""
        cdef Py_ssize_t before_length = PyBytes_Size(before)
        cdef Py_ssize_t after_length = PyBytes_Size(after)
        cdef const char* before_text = PyBytes_AsString(before)
        cdef const char* after_text = PyBytes_AsString(after)
        cdef Py_ssize_t at, start, length, size = 0
        cdef Py_ssize_t fixed = before_length + after_length
        cdef int64_t sequence
        cdef bytes wire
        cdef char* out
        cdef int digits
        if self._count == 0:
            return b""
        for at in range(self._count):
            length = fixed + _digits(base_offset + 1 + self._positions[at])
            size += length + _digits(length)
        size += self._ends[self._count - 1] + self._count * 9  # PUB, two spaces, two line ends
        wire = PyBytes_FromStringAndSize(NULL, size)
        out = PyBytes_AsString(wire)
        start = 0
        for at in range(self._count):
            sequence = base_offset + 1 + self._positions[at]
            digits = _digits(sequence)
            memcpy(out, b"PUB ", 4)
            out += 4
            memcpy(out, self._text + start, self._ends[at] - start)
            out += self._ends[at] - start
            start = self._ends[at]
            out[0] = b" "
            out += 1
            length = fixed + digits
            out += _write_number(out, length, _digits(length))
            out[0] = b"\r"
            out[1] = b"\n"
            out += 2
            memcpy(out, before_text, before_length)
            out += before_length
            out += _write_number(out, sequence, digits)
            memcpy(out, after_text, after_length)
            out += after_length
            out[0] = b"\r"
            out[1] = b"\n"
            out += 2
        return wire


cdef inline int _digits(int64_t number) noexcept nogil:
    cdef int digits = 1
    while number >= 10:
        number = number // 10
        digits += 1
    return digits


cdef inline int _write_number(char* out, int64_t number, int digits) noexcept nogil:
    cdef int at
    for at in range(digits - 1, -1, -1):
        out[at] = <char>(48 + number % 10)
        number = number // 10
    return digits
