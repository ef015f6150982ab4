# Avro and Protobuf: a part of _typed_json.pyx. A plan of `Op`s says what stands in a value's bytes,
# and which columns are filled by it (typed_values.py).
#
# Avro has no marks: a value is gone through from its first byte to its last, also what no column
# wants, and what does not end where it should is no Avro. Protobuf has numbers: what a message has
# for each is noted first, since it may come in any order, more than once, and in pieces.

# As layouts.AVRO numbers them.
cdef enum:
    A_NULL = 0
    A_BOOLEAN = 1
    A_INT = 2
    A_LONG = 3
    A_FLOAT = 4
    A_DOUBLE = 5
    A_BYTES = 6
    A_STRING = 7
    A_FIXED = 8
    A_ENUM = 9
    A_ARRAY = 10
    A_UNION = 11
    A_RECORD = 12
    A_DATE = 13
    A_MILLIS = 14
    A_MICROS = 15
    A_NANOS = 16
    A_DECIMAL = 17
    A_FIXED_DECIMAL = 18
    A_FIXED_UUID = 19

# As layouts.PROTOBUF numbers them.
cdef enum:
    P_BOOL = 0
    P_INT32 = 1
    P_INT64 = 2
    P_UINT32 = 3
    P_UINT64 = 4
    P_SINT32 = 5
    P_SINT64 = 6
    P_FIXED32 = 7
    P_FIXED64 = 8
    P_SFIXED32 = 9
    P_SFIXED64 = 10
    P_FLOAT = 11
    P_DOUBLE = 12
    P_STRING = 13
    P_BYTES = 14
    P_ENUM = 15
    P_MESSAGE = 16
    P_TIMESTAMP = 17

# As typed_values.py numbers labels; ONEOF is the first of all oneofs.
cdef enum:
    IMPLICIT = 0
    OPTIONAL = 1
    REPEATED = 2
    ONEOF = 3

# As Protobuf numbers them.
cdef enum:
    VARINT = 0
    EIGHT_BYTES = 1
    DELIMITED = 2
    GROUP = 3
    GROUP_END = 4
    FOUR_BYTES = 5

cdef enum:
    BROKEN = -3  # What became of a value: its bytes are none of the layout.
    NOT_READ = 1  # As typed_values.py numbers errors.
    NO_LAYOUT = 2
    TEXT_PER_PART = 8  # Bytes that the schema has, and the value does not.
    GROUPS_MAX = 100  # Within each other. As Protobuf's own decoders have it.


# The plan.

cdef int _sum(op, int what) except -1:
    """How many an op has with all that is within it: itself (0), or elements of it."""
    cdef int found = len(op[what]) if what else 1
    for each in op[7]:
        found += _sum(each, what)
    return found


cdef take_layouts(Columns self, int format, layouts):
    """layouts: (ids, op) of each. An op: (code, place, number, scale, label, symbols, defaults,
    ops within it)."""
    cdef int at, place
    cdef Py_ssize_t size
    self.format = format
    self.layout_count = len(layouts)
    ops = [op for _, op in layouts]
    size = sum([_sum(op, 0) for op in ops])
    self.ops = <Op*>calloc(size + 1, sizeof(Op))
    self.symbols = <Symbol*>calloc(sum([_sum(op, 5) for op in ops]) + 1, sizeof(Symbol))
    self.ops_capacity = <int>size + 1
    self.defaults = <Default*>calloc(
        sum([_sum(op, 6) for op in ops]) + self.node_count, sizeof(Default)
    )
    self.layouts = <Layout*>calloc(self.layout_count, sizeof(Layout))
    if (
        self.ops == NULL or self.symbols == NULL or self.defaults == NULL
        or self.layouts == NULL
    ):
        raise MemoryError
    for at, (ids, op) in enumerate(layouts):
        self.layouts[at].op = self.op_count
        self.op_count += 1
        take_op(self, self.layouts[at].op, op)
        self.layouts[at].id = ids[0] if ids and format == AVRO else -1
        if format == PROTOBUF:
            self.path_length = len(ids)
            self.path = <int64_t*>calloc(self.path_length + 1, sizeof(int64_t))
            if self.path == NULL:
                raise MemoryError
            for place in range(self.path_length):
                self.path[place] = ids[place]
    if format == ARROW:
        take_arrow(self)
        if self.failed:
            raise MemoryError


cdef take_op(Columns self, int at, given):
    cdef Op* op = &self.ops[at]
    cdef Op* each
    cdef int place
    cdef bytes text
    code, of_column, number, scale, label, symbols, defaults, ops = given
    op.code, op.place, op.number, op.scale, op.label = code, of_column, number, scale, label
    op.symbols, op.symbol_count = self.symbol_count, len(symbols)
    self.symbol_count += op.symbol_count
    for place, (text, value) in enumerate(symbols):
        self.names.append(text)
        self.symbols[op.symbols + place].text = <const uint8_t*><const char*>text
        self.symbols[op.symbols + place].length = len(text)
        self.symbols[op.symbols + place].number = value
    op.defaults, op.default_count = self.default_count, len(defaults)
    self.default_count += op.default_count
    for place, (field, text) in enumerate(defaults):
        self.names.append(text)
        self.defaults[op.defaults + place].place = field
        self.defaults[op.defaults + place].text = <const uint8_t*><const char*>text
        self.defaults[op.defaults + place].length = len(text)
    op.first, op.count = self.op_count, len(ops)
    self.op_count += op.count
    for place, within in enumerate(ops):
        take_op(self, op.first + place, within)
    for place in range(op.count):
        each = &self.ops[op.first + place]
        each.rival = op.first
        while self.ops[each.rival].label != each.label:
            each.rival += 1


# What both have.

cdef inline Node* column_of(Columns self, Node* node, Op* op) noexcept nogil:
    """The column of a struct that it fills; NULL: none."""
    if node == NULL or node.kind != STRUCT or not 0 <= op.place < node.count:
        return NULL
    return &self.nodes[node.first + op.place]


cdef inline bint read_varint(
    const uint8_t** at, const uint8_t* end, uint64_t* found
) noexcept nogil:
    """False: there is none, of at most ten bytes. Bits beyond 64 do not count, as in Protobuf."""
    cdef const uint8_t* here = at[0]
    cdef uint64_t whole = 0
    cdef int shift = 0
    while here < end:
        whole |= <uint64_t>(here[0] & 0x7F) << shift
        if here[0] < 0x80:
            at[0], found[0] = here + 1, whole
            return True
        shift += 7
        if shift > 63:
            return False
        here += 1
    return False


cdef inline bint read_long(const uint8_t** at, const uint8_t* end, int64_t* found) noexcept nogil:
    """As Avro has it: False also for bits beyond 64."""
    cdef const uint8_t* start = at[0]
    cdef uint64_t whole = 0
    if not read_varint(at, end, &whole) or (at[0] - start == 10 and (at[0] - 1)[0] > 1):
        return False
    found[0] = from_zigzag(whole)
    return True


cdef inline int64_t from_zigzag(uint64_t found) noexcept nogil:
    return <int64_t>(found >> 1) ^ -<int64_t>(found & 1)


cdef Symbol* symbol_of(Columns self, Op* op, int64_t number) noexcept nogil:
    """NULL: there is none of that number."""
    cdef int low = op.symbols, high = op.symbols + op.symbol_count, middle
    while low < high:
        middle = (low + high) // 2
        if self.symbols[middle].number < number:
            low = middle + 1
        else:
            high = middle
    if low < op.symbols + op.symbol_count and self.symbols[low].number == number:
        return &self.symbols[low]
    return NULL


cdef int add_default(Columns self, Node* node, Default* given) noexcept nogil:
    cdef Node* field = &self.nodes[node.first + given.place]
    if given.length:
        self.parts -= given.length // TEXT_PER_PART
        return self._append(field, given.text, given.text + given.length)
    self._append_null(field)
    return NULL_VALUE


cdef int add_top_defaults(Columns self, Op* op, int64_t parts, int error) noexcept nogil:
    """For the columns that the layout lacks. Returns the record's error."""
    cdef int place
    cdef Default* given
    for place in range(op.default_count):
        given = &self.defaults[op.defaults + place]
        self.parts = parts
        error = self._settled(given.place, add_default(self, &self.nodes[0], given), error)
    return error


cdef int finish_struct(Columns self, Op* op, Node* node, bint fits) noexcept nogil:
    """fits: so do those of its fields that the layout has."""
    cdef int place, outcome
    cdef Default* given
    for place in range(op.default_count):
        if not fits:
            break
        given = &self.defaults[op.defaults + place]
        outcome = add_default(self, node, given)
        fits = outcome == FITS or (
            outcome == NULL_VALUE and not self.nodes[node.first + given.place].required
        )
    if not fits or self.parts < 0:
        for place in range(node.count):
            self._cut(&self.nodes[node.first + place], node.length)
        return MISFIT
    return self._finish_row(node, True)


# Avro.

cdef int avro_record(Columns self, const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Returns the number of its first error; 0: none."""
    cdef Node* field
    cdef int64_t parts = PARTS_MIN + PARTS_PER_BYTE * <int64_t>(end - at)
    cdef Op* op = avro_layout(self, &at, end)
    cdef Op* each
    cdef int place, outcome, error = 0
    if op == NULL:
        return self._nothing_fits(NO_LAYOUT)
    self.steps = parts
    for place in range(op.count):
        each = &self.ops[op.first + place]
        field = column_of(self, &self.nodes[0], each)
        self.parts = parts
        outcome = avro_value(self, each, field, &at, end)
        if outcome == BROKEN:
            return self._nothing_fits(NOT_READ)
        if field != NULL:
            error = self._settled(each.place, outcome, error)
    if at != end:
        return self._nothing_fits(NOT_READ)
    return add_top_defaults(self, op, parts, error)


cdef Op* avro_layout(Columns self, const uint8_t** at, const uint8_t* end) noexcept nogil:
    """That of the value, whose prefix is passed over. NULL: it has none that is known."""
    cdef int place
    cdef int64_t number
    cdef const uint8_t* here = at[0]
    if self.layouts[0].id < 0:
        return &self.ops[self.layouts[0].op]
    if end - here < 5 or here[0] != 0:
        return NULL
    number = <int64_t>here[1] << 24 | <int64_t>here[2] << 16 | <int64_t>here[3] << 8 | here[4]
    at[0] = here + 5
    if self.layouts[self.last_layout].id != number:
        for place in range(self.layout_count):
            if self.layouts[place].id == number:
                self.last_layout = place
                break
        else:
            return NULL
    return &self.ops[self.layouts[self.last_layout].op]


cdef int avro_value(
    Columns self, Op* op, Node* node, const uint8_t** at, const uint8_t* end
) noexcept nogil:
    """Goes on behind it, unless it is BROKEN. node: NULL: it is passed over."""
    cdef int64_t whole = 0
    cdef float single
    cdef double number
    self.steps -= 1
    if self.steps < 0:
        return BROKEN
    if op.code == A_NULL:
        if node != NULL:
            self._append_null(node)
        return NULL_VALUE
    if op.code == A_ARRAY:
        return avro_array(self, op, node, at, end)
    if op.code == A_RECORD:
        return avro_struct(self, op, node, at, end)
    if op.code == A_BOOLEAN:
        if at[0] == end or at[0][0] > 1:
            return BROKEN
        at[0] += 1
        return FITS if node == NULL else self._put_boolean(node, (at[0] - 1)[0] != 0)
    if op.code == A_FLOAT:
        if end - at[0] < 4:
            return BROKEN
        memcpy(&single, at[0], 4)
        at[0] += 4
        return FITS if node == NULL else self._put_double(node, single)
    if op.code == A_DOUBLE:
        if end - at[0] < 8:
            return BROKEN
        memcpy(&number, at[0], 8)
        at[0] += 8
        return FITS if node == NULL else self._put_double(node, number)
    if op.code == A_FIXED or op.code == A_FIXED_DECIMAL:
        return avro_bytes(self, op, node, at, end, op.number)
    if op.code == A_FIXED_UUID:
        return avro_bytes(self, op, node, at, end, 16)
    if not read_long(at, end, &whole):
        return BROKEN
    if op.code == A_BYTES or op.code == A_STRING or op.code == A_DECIMAL:
        return avro_bytes(self, op, node, at, end, whole)
    if op.code == A_UNION:
        if not 0 <= whole < op.count:
            return BROKEN
        return avro_value(self, &self.ops[op.first + <int>whole], node, at, end)
    if op.code == A_ENUM:
        if not 0 <= whole < op.symbol_count:
            return BROKEN
        return FITS if node == NULL else put_symbol(self, node, &self.symbols[op.symbols + whole])
    if node == NULL:
        return FITS
    if op.code == A_INT or op.code == A_LONG:
        return self._put_integer(node, whole)
    return avro_moment(self, op, node, whole)


cdef int put_symbol(Columns self, Node* node, Symbol* symbol) noexcept nogil:
    self.parts -= symbol.length // TEXT_PER_PART
    return self._put_bytes(node, symbol.text, symbol.length)


cdef int avro_moment(Columns self, Op* op, Node* node, int64_t whole) noexcept nogil:
    cdef bint behind = whole < 0 and whole % 1000 != 0
    if node.kind != (DATE if op.code == A_DATE else TIMESTAMP):
        return MISFIT
    if op.code == A_MILLIS:
        if not -(<int64_t>1 << 50) < whole < <int64_t>1 << 50:
            return MISFIT  # Far beyond the year 9999, and it would not fit 64 bits below.
        whole *= 1000
    elif op.code == A_NANOS:
        whole = whole // 1000 - behind
    return self._put_moment(node, whole)


cdef int avro_bytes(
    Columns self, Op* op, Node* node, const uint8_t** at, const uint8_t* end, int64_t length
) noexcept nogil:
    cdef const uint8_t* here = at[0]
    cdef uint8_t text[64]
    if not 0 <= length <= end - here:
        return BROKEN
    at[0] = here + length
    if node == NULL:
        return FITS
    if op.code == A_FIXED_UUID:
        return self._put_bytes(node, text, uuid_text(here, text))
    if op.code != A_DECIMAL and op.code != A_FIXED_DECIMAL:
        return self._put_bytes(node, here, length)
    return put_decimal(self, node, here, length, op.scale)


cdef int put_decimal(
    Columns self, Node* node, const uint8_t* here, int64_t length, int scale
) noexcept nogil:
    """Of a whole number in two's complement, the highest byte first."""
    cdef uint8_t text[64]
    while length > 16 and (
        (here[0] == 0 and here[1] < 0x80) or (here[0] == 0xFF and here[1] >= 0x80)
    ):
        here += 1
        length -= 1
    if length > 16:
        return MISFIT
    return self._put_bytes(node, text, decimal_text(here, length, scale, text))


cdef int uuid_text(const uint8_t* at, uint8_t* into) noexcept nogil:
    cdef const uint8_t* digits = <const uint8_t*><const char*>b"0123456789abcdef"
    cdef int place, length = 0
    for place in range(16):
        if place == 4 or place == 6 or place == 8 or place == 10:
            into[length] = 45
            length += 1
        into[length] = digits[at[place] >> 4]
        into[length + 1] = digits[at[place] & 15]
        length += 2
    return length


cdef int avro_array(
    Columns self, Op* op, Node* node, const uint8_t** at, const uint8_t* end
) noexcept nogil:
    cdef Op* within = &self.ops[op.first]
    cdef Node* element = NULL
    cdef bint fits = node == NULL or (node.kind == LIST and self._reserve(node))
    cdef int64_t length = 0, count = 0, size = 0
    cdef int outcome = FITS
    self.parts -= node != NULL
    if node != NULL and fits:
        element = &self.nodes[node.first]
        length = element.length
    while True:
        if not read_long(at, end, &count):
            outcome = BROKEN
            break
        if count == 0:
            break
        if count < 0 and not read_long(at, end, &size):  # How many bytes the block has.
            outcome = BROKEN
            break
        # Each takes a step, so that there is an end however many it says.
        while count != 0 and outcome != BROKEN:
            count += 1 if count < 0 else -1
            outcome = avro_value(self, within, element, at, end)
            if element != NULL and (outcome == MISFIT or outcome == BROKEN or self.parts < 0):
                self._cut(element, length)
                element, fits = NULL, False
        if outcome == BROKEN:
            break
    if outcome == BROKEN:
        if element != NULL:
            self._cut(element, length)
        return BROKEN
    if node == NULL:
        return FITS
    if not fits:
        return MISFIT
    node.offsets[node.length + 1] = <int32_t>element.length
    return self._finish_row(node, True)


cdef int avro_struct(
    Columns self, Op* op, Node* node, const uint8_t** at, const uint8_t* end
) noexcept nogil:
    cdef bint fits = node == NULL or (node.kind == STRUCT and self._reserve(node))
    cdef bint wanted = node != NULL and fits
    cdef Op* within
    cdef Node* field
    cdef int place, outcome = FITS
    self.parts -= node != NULL
    for place in range(op.count):
        within = &self.ops[op.first + place]
        field = column_of(self, node, within) if wanted and fits else NULL
        outcome = avro_value(self, within, field, at, end)
        if outcome == BROKEN:
            break
        if field != NULL and (
            outcome == MISFIT or self.parts < 0 or (outcome == NULL_VALUE and field.required)
        ):
            fits = False
    if wanted:
        place = finish_struct(self, op, node, fits and outcome != BROKEN)
        return BROKEN if outcome == BROKEN else place
    if outcome == BROKEN:
        return BROKEN
    return FITS if fits else MISFIT


# Protobuf.

cdef int protobuf_record(Columns self, const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Returns the number of its first error; 0: none."""
    cdef Op* op = &self.ops[self.layouts[0].op]
    cdef Op* within
    cdef Node* field
    cdef int64_t parts = PARTS_MIN + PARTS_PER_BYTE * <int64_t>(end - at)
    cdef int place, error = 0
    if at < end and at[0] == 0:  # No message begins so: there is no field 0.
        error = skip_prefix(self, &at, end)
        if error:
            return self._nothing_fits(error)
    self.seen_count = 0
    if not note_fields(self, op, at, end):
        return self._nothing_fits(NOT_READ)
    for place in range(op.count):
        within = &self.ops[op.first + place]
        field = column_of(self, &self.nodes[0], within)
        if field != NULL:
            self.parts = parts
            error = self._settled(within.place, protobuf_field(self, within, field), error)
    return add_top_defaults(self, op, parts, error)


cdef int skip_prefix(Columns self, const uint8_t** at, const uint8_t* end) noexcept nogil:
    """The zero, four bytes of a registry's id, and which message of its file it is: how many
    numbers, and they. A single zero is short for the first message. Returns an error, or 0."""
    cdef uint64_t found = 0
    cdef int64_t count, place
    cdef bint is_ours = True
    if end - at[0] < 6:
        return NOT_READ
    at[0] += 5
    if not read_varint(at, end, &found):
        return NOT_READ
    count = from_zigzag(found)
    if count == 0:
        return 0 if self.path_length == 1 and self.path[0] == 0 else NO_LAYOUT
    if not 0 < count <= end - at[0]:
        return NOT_READ
    for place in range(count):
        if not read_varint(at, end, &found):
            return NOT_READ
        is_ours = is_ours and place < self.path_length and self.path[place] == from_zigzag(found)
    return 0 if is_ours and count == self.path_length else NO_LAYOUT


cdef Op* op_of(Columns self, Op* op, uint64_t number, int* expected) noexcept nogil:
    """Of the field of that number; NULL: there is none. expected: mostly they come in order."""
    cdef int low = 0, high = op.count, middle
    if expected[0] < op.count and <uint64_t>self.ops[op.first + expected[0]].number == number:
        return &self.ops[op.first + expected[0]]
    while low < high:
        middle = (low + high) // 2
        if <uint64_t>self.ops[op.first + middle].number < number:
            low = middle + 1
        else:
            high = middle
    if low == op.count or <uint64_t>self.ops[op.first + low].number != number:
        return NULL
    expected[0] = low
    return &self.ops[op.first + low]


cdef int wire_of(int code) noexcept nogil:
    """The wire type of one value."""
    if code == P_FIXED32 or code == P_SFIXED32 or code == P_FLOAT:
        return FOUR_BYTES
    if code == P_FIXED64 or code == P_SFIXED64 or code == P_DOUBLE:
        return EIGHT_BYTES
    if code == P_STRING or code == P_BYTES or code == P_MESSAGE or code == P_TIMESTAMP:
        return DELIMITED
    return VARINT


cdef const uint8_t* skip_wire(
    int wire, const uint8_t** at, const uint8_t* end
) noexcept nogil:
    """at: moved to the first byte of what is within a length. Returns the end; NULL: there is
    none. No group."""
    cdef const uint8_t* stop = at[0]
    cdef uint64_t found = 0
    cdef int64_t length = 0
    if wire == VARINT:
        return stop if read_varint(&stop, end, &found) else NULL
    if wire == EIGHT_BYTES:
        length = 8
    elif wire == FOUR_BYTES:
        length = 4
    elif wire == DELIMITED:
        if not read_varint(at, end, &found) or found > <uint64_t>0x7FFFFFFF:
            return NULL
        length = <int64_t>found
    else:
        return NULL
    return at[0] + length if length <= end - at[0] else NULL


cdef inline bint read_tag(
    const uint8_t** at, const uint8_t* end, uint64_t* number, int* wire
) noexcept nogil:
    cdef const uint8_t* start = at[0]
    cdef uint64_t found = 0
    if not read_varint(at, end, &found) or at[0] - start > 5 or found > <uint64_t>0xFFFFFFFF:
        return False
    number[0], wire[0] = found >> 3, <int>(found & 7)
    return number[0] != 0


cdef const uint8_t* skip_group(
    const uint8_t* at, const uint8_t* end, uint64_t number
) noexcept nogil:
    """at: behind its first tag. NULL: it has no end."""
    cdef uint64_t open[GROUPS_MAX]
    cdef int depth = 1, wire = 0
    open[0] = number
    while depth:
        if not read_tag(&at, end, &number, &wire):
            return NULL
        if wire == GROUP_END:
            depth -= 1
            if open[depth] != number:
                return NULL
        elif wire == GROUP:
            if depth == GROUPS_MAX:
                return NULL
            open[depth] = number
            depth += 1
        else:
            at = skip_wire(wire, &at, end)
            if at == NULL:
                return NULL
    return at


cdef bint note_fields(Columns self, Op* op, const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Note what a message has for its fields. False: it is no message."""
    cdef Op* within
    cdef uint64_t number = 0
    cdef int wire = 0, place, expected = 0, own
    cdef const uint8_t* start
    for place in range(op.count):
        within = &self.ops[op.first + place]
        within.head = within.tail = within.holder = -1
    while at < end:
        if not read_tag(&at, end, &number, &wire):
            return False
        if wire == GROUP:
            at = skip_group(at, end, number)
            if at == NULL:
                return False
            continue
        start = at
        at = skip_wire(wire, &start, end)
        if at == NULL:
            return False
        within = op_of(self, op, number, &expected)
        if within == NULL or within.place < 0 and within.label < ONEOF:
            continue
        own = wire_of(within.code)
        if wire == own:
            expected += within.label != REPEATED
        elif wire != DELIMITED or within.label != REPEATED:
            continue  # As a field that is not known.
        if not note_field(self, within, start, at, wire):
            return False
    return True


cdef bint is_broken_text(Columns self, Op* op) noexcept nogil:
    """Whether the last that was noted for a field of text is none. It stays the last then: Protobuf's
    own decoders read no such message, whatever follows."""
    return op.code == P_STRING and op.head >= 0 and not is_utf8(
        self.seen[op.tail].start, self.seen[op.tail].stop
    )


cdef bint note_field(
    Columns self, Op* op, const uint8_t* start, const uint8_t* stop, int wire
) noexcept nogil:
    """False: memory has run out."""
    cdef Op* first
    cdef Seen* seen
    if self.seen_count == self.seen_capacity:
        self.seen = <Seen*>self._grown(
            self.seen, (2 * self.seen_capacity + 64) * sizeof(Seen)
        )
        if self.failed:
            return False
        self.seen_capacity = 2 * self.seen_capacity + 64
    if op.label >= ONEOF:  # The last one that is set is the only one.
        first = &self.ops[op.rival]
        if first.holder >= 0 and &self.ops[first.holder] != op:
            if is_broken_text(self, &self.ops[first.holder]):
                return True
            self.ops[first.holder].head = -1
        first.holder = <int>(op - self.ops)
    if op.label != REPEATED and is_broken_text(self, op):
        return True
    seen = &self.seen[self.seen_count]
    seen.start, seen.stop, seen.wire, seen.next = start, stop, wire, -1
    if op.head < 0:
        op.head = self.seen_count
    else:
        self.seen[op.tail].next = self.seen_count
    op.tail = self.seen_count
    self.seen_count += 1
    return True


cdef int protobuf_field(Columns self, Op* op, Node* node) noexcept nogil:
    cdef Seen seen
    if op.label == REPEATED:
        return protobuf_list(self, op, node)
    if op.head < 0:
        if op.label == IMPLICIT and op.code != P_MESSAGE and op.code != P_TIMESTAMP:
            return protobuf_zero(self, op, node)
        self._append_null(node)
        return NULL_VALUE
    seen = self.seen[op.tail]
    if op.code == P_MESSAGE or op.code == P_TIMESTAMP:
        if op.head != op.tail:
            return protobuf_merged(self, op, node)
        return protobuf_message(self, op, node, seen.start, seen.stop)
    return protobuf_scalar(self, op, node, &seen.start, seen.stop)


cdef int protobuf_merged(Columns self, Op* op, Node* node) noexcept nogil:
    """A message that is there in pieces is what its pieces are one after the other."""
    cdef int64_t at = op.head, length = 0
    cdef uint8_t* whole
    cdef int outcome
    while at >= 0:
        length += self.seen[at].stop - self.seen[at].start
        at = self.seen[at].next
    whole = <uint8_t*>malloc(length + 1)
    if whole == NULL:
        self.failed = True
        return MISFIT
    at, length = op.head, 0
    while at >= 0:
        memcpy(whole + length, self.seen[at].start, self.seen[at].stop - self.seen[at].start)
        length += self.seen[at].stop - self.seen[at].start
        at = self.seen[at].next
    outcome = protobuf_message(self, op, node, whole, whole + length)
    free(whole)
    return outcome


cdef int protobuf_message(
    Columns self, Op* op, Node* node, const uint8_t* at, const uint8_t* end
) noexcept nogil:
    cdef int64_t mark = self.seen_count
    cdef int place, outcome
    cdef Op* within
    cdef Node* field
    cdef bint fits
    if op.code == P_TIMESTAMP:
        return protobuf_moment(self, node, at, end)
    self.parts -= 1
    if node.kind != STRUCT or not self._reserve(node):
        return MISFIT
    fits = note_fields(self, op, at, end)
    for place in range(op.count):
        if not fits:
            break
        within = &self.ops[op.first + place]
        field = column_of(self, node, within)
        if field == NULL:
            self.parts -= 1  # To pass over it takes time, too.
        else:
            outcome = protobuf_field(self, within, field)
            fits = outcome != MISFIT and self.parts >= 0 and (
                outcome == FITS or not field.required
            )
    self.seen_count = mark
    return finish_struct(self, op, node, fits)


cdef int protobuf_list(Columns self, Op* op, Node* node) noexcept nogil:
    cdef Node* element
    cdef Seen seen
    cdef int64_t at = op.head, length
    cdef int outcome = FITS
    self.parts -= 1
    if node.kind != LIST or not self._reserve(node):
        return MISFIT
    element = &self.nodes[node.first]
    length = element.length
    while at >= 0:
        seen = self.seen[at]
        at = seen.next
        if op.code == P_MESSAGE or op.code == P_TIMESTAMP:
            outcome = protobuf_message(self, op, element, seen.start, seen.stop)
        elif seen.wire == wire_of(op.code):
            outcome = protobuf_scalar(self, op, element, &seen.start, seen.stop)
        else:
            while seen.start < seen.stop and outcome == FITS and self.parts >= 0:
                outcome = protobuf_scalar(self, op, element, &seen.start, seen.stop)
        if outcome != FITS or self.parts < 0:
            self._cut(element, length)
            return MISFIT
    node.offsets[node.length + 1] = <int32_t>element.length
    return self._finish_row(node, True)


cdef int protobuf_zero(Columns self, Op* op, Node* node) noexcept nogil:
    if op.code == P_STRING or op.code == P_BYTES:
        return self._put_bytes(node, NULL, 0)
    if op.code == P_FLOAT or op.code == P_DOUBLE:
        return self._put_double(node, 0)
    return put_varint(self, op, node, 0)


cdef int put_varint(Columns self, Op* op, Node* node, uint64_t found) noexcept nogil:
    cdef Symbol* symbol
    cdef char text[16]
    if op.code == P_BOOL:
        return self._put_boolean(node, found != 0)
    if op.code == P_INT32 or op.code == P_SFIXED32:
        return self._put_integer(node, <int32_t>found)
    if op.code == P_UINT32 or op.code == P_FIXED32:
        return self._put_integer(node, <uint32_t>found)
    if op.code == P_SINT32:
        return self._put_integer(node, <int32_t>from_zigzag(<uint32_t>found))
    if op.code == P_SINT64:
        return self._put_integer(node, from_zigzag(found))
    if op.code == P_ENUM:
        symbol = symbol_of(self, op, <int32_t>found)
        if symbol != NULL:
            return put_symbol(self, node, symbol)
        return self._put_bytes(
            node, <const uint8_t*>text, snprintf(text, sizeof(text), b"%d", <int32_t>found)
        )
    if (op.code == P_UINT64 or op.code == P_FIXED64) and found > <uint64_t>0x7FFFFFFFFFFFFFFF:
        self.parts -= 1
        return MISFIT
    return self._put_integer(node, <int64_t>found)


cdef int protobuf_scalar(
    Columns self, Op* op, Node* node, const uint8_t** at, const uint8_t* end
) noexcept nogil:
    """Moves behind it, unless it does not fit; of text, `end` is where it ends."""
    cdef uint64_t found = 0
    cdef uint32_t four = 0
    cdef float single
    cdef double number
    cdef int wire = wire_of(op.code)
    if wire == DELIMITED:
        return self._put_bytes(node, at[0], end - at[0])
    if wire == VARINT:
        if not read_varint(at, end, &found):
            return MISFIT
        return put_varint(self, op, node, found)
    if wire == FOUR_BYTES:
        if end - at[0] < 4:
            return MISFIT
        memcpy(&four, at[0], 4)
        memcpy(&single, at[0], 4)
        at[0] += 4
        if op.code == P_FLOAT:
            return self._put_double(node, single)
        return put_varint(self, op, node, four)
    if end - at[0] < 8:
        return MISFIT
    memcpy(&found, at[0], 8)
    memcpy(&number, at[0], 8)
    at[0] += 8
    if op.code == P_DOUBLE:
        return self._put_double(node, number)
    return put_varint(self, op, node, found)


cdef int protobuf_moment(
    Columns self, Node* node, const uint8_t* at, const uint8_t* end
) noexcept nogil:
    """A google.protobuf.Timestamp: seconds (1) and nanoseconds (2)."""
    cdef uint64_t number = 0, found = 0
    cdef int64_t seconds = 0
    cdef int32_t nanos = 0
    cdef int wire = 0
    cdef const uint8_t* start
    while at < end:
        if not read_tag(&at, end, &number, &wire):
            return MISFIT
        start = at
        at = skip_group(at, end, number) if wire == GROUP else skip_wire(wire, &start, end)
        if at == NULL:
            return MISFIT
        if wire == VARINT and number <= 2:
            read_varint(&start, end, &found)
            if number == 1:
                seconds = <int64_t>found
            else:
                nanos = <int32_t>found
    if node.kind != TIMESTAMP or not 0 <= nanos < 1_000_000_000:
        return MISFIT
    if not -(<int64_t>1 << 40) < seconds < <int64_t>1 << 40:
        return MISFIT  # Far beyond the year 9999, and it would not fit 64 bits below.
    return self._put_moment(node, seconds * 1_000_000 + nanos // 1000)
