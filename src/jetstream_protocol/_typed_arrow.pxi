# Arrow IPC: a part of _typed_json.pyx. A value is one row: a stream, which begins with its schema, or
# a record batch alone, which stands as the layout says.
#
# **safety** Nothing that a value says is believed: each place is compared with where its part ends
# before it is read. Buffers lie one after the other, so that no byte is in two columns.

# As layouts.ARROW numbers them.
cdef enum:
    R_NULL = 0
    R_BOOLEAN = 1
    R_INT8 = 2  # Then those of 16, 32 and 64 bits, and the same without a sign.
    R_INT32 = 4
    R_INT64 = 5
    R_UINT64 = 9
    R_FLOAT = 10
    R_DOUBLE = 11
    R_BYTES = 12
    R_LARGE_BYTES = 13
    R_BYTES_VIEW = 14
    R_FIXED = 15
    R_DECIMAL = 16
    R_DATE32 = 17
    R_DATE64 = 18
    R_SECONDS = 19  # Then milli-, micro- and nanoseconds.
    R_NANOS = 22
    R_LIST = 23
    R_LARGE_LIST = 24
    R_FIXED_LIST = 25
    R_STRUCT = 26
    R_OTHER = 27  # No column can have it. number: how many buffers it has.

# As Arrow numbers messages.
cdef enum:
    NO_MESSAGE = 0
    SCHEMA_MESSAGE = 1
    DICTIONARY_MESSAGE = 2
    BATCH_MESSAGE = 3

cdef enum:
    MAP_TYPE = 17  # As Arrow numbers types.
    NOT_ONE_ROW = 2  # As typed_values.py numbers errors.
    FLAT_DEPTH_MAX = 32  # As layouts.py has them.
    FLAT_FIELDS_MAX = 2_000
    FIELD_BYTES_MIN = 16  # Of a schema, each field takes more.
    DECIMAL_SCALE_MAX = 38


# What says how a message stands in bytes: tables with places of other tables. Place 0 stands for what
# is not there; `broken`: something leads out of it.
cdef struct Flat:
    const uint8_t* start
    int64_t size
    bint broken


cdef struct ArrowMessage:
    Flat flat
    int kind
    int64_t header
    const uint8_t* body
    int64_t body_length


# Flat buffers.

cdef inline uint32_t four_at(const uint8_t* at) noexcept nogil:
    cdef uint32_t found
    memcpy(&found, at, 4)
    return found


cdef inline int64_t eight_at(const uint8_t* at) noexcept nogil:
    cdef int64_t found
    memcpy(&found, at, 8)
    return found


cdef inline int64_t whole_at(const uint8_t* at, int width) noexcept nogil:
    """A number with a sign, of 1, 2, 4 or 8 bytes."""
    cdef int16_t two
    if width == 8:
        return eight_at(at)
    if width == 4:
        return <int32_t>four_at(at)
    if width == 1:
        return <int8_t>at[0]
    memcpy(&two, at, 2)
    return two


cdef int64_t flat_field(Flat* flat, int64_t table, int number, int width) noexcept nogil:
    """The place of a field, which has so many bytes; 0: it is not there."""
    cdef int64_t entries, size, at
    if table == 0:
        return 0
    if not 4 <= table <= flat.size - 4:
        flat.broken = True
        return 0
    entries = table - <int32_t>four_at(flat.start + table)
    if not 0 <= entries <= flat.size - 4:
        flat.broken = True
        return 0
    size = whole_at(flat.start + entries, 2) & 0xFFFF
    if size > flat.size - entries:
        flat.broken = True
        return 0
    if 4 + 2 * number + 2 > size:
        return 0
    at = whole_at(flat.start + entries + 4 + 2 * number, 2) & 0xFFFF
    if at == 0:
        return 0
    at += table
    if at > flat.size - width:
        flat.broken = True
        return 0
    return at


cdef int64_t flat_number(
    Flat* flat, int64_t table, int number, int width, int64_t default
) noexcept nogil:
    cdef int64_t at = flat_field(flat, table, number, width)
    return whole_at(flat.start + at, width) if at else default


cdef int64_t flat_led_to(Flat* flat, int64_t at) noexcept nogil:
    """Where the distance at a place leads: four bytes are there."""
    cdef int64_t found
    if at == 0:
        return 0
    found = at + four_at(flat.start + at)
    if found > flat.size - 4:
        flat.broken = True
        return 0
    return found


cdef int64_t flat_table(Flat* flat, int64_t table, int number) noexcept nogil:
    return flat_led_to(flat, flat_field(flat, table, number, 4))


cdef int64_t flat_vector(
    Flat* flat, int64_t table, int number, int width, int64_t* count
) noexcept nogil:
    """The place of the first of so many elements."""
    cdef int64_t at = flat_table(flat, table, number)
    count[0] = 0
    if at == 0:
        return 0
    if four_at(flat.start + at) > (flat.size - at - 4) // width:
        flat.broken = True
        return 0
    count[0] = four_at(flat.start + at)
    return at + 4


cdef bint next_message(
    const uint8_t** at, const uint8_t* end, ArrowMessage* found
) noexcept nogil:
    """False: it is none. NO_MESSAGE: there is no further one."""
    cdef const uint8_t* here = at[0]
    cdef Flat* flat = &found.flat
    cdef int64_t table, version
    found.kind = NO_MESSAGE
    if here == end:
        return True
    if end - here < 8 or four_at(here) != <uint32_t>0xFFFFFFFF:
        return False
    flat.start, flat.size, flat.broken = here + 8, four_at(here + 4), False
    if flat.size == 0:
        return end - here == 8
    if not 8 <= flat.size <= end - here - 8:
        return False
    table = four_at(flat.start)
    if table == 0:
        return False
    version = flat_number(flat, table, 0, 2, 0)
    found.kind = <int>flat_number(flat, table, 1, 1, 0)
    found.header = flat_table(flat, table, 2)
    found.body_length = flat_number(flat, table, 3, 8, 0)
    found.body = flat.start + flat.size
    if flat.broken or found.header == 0 or found.kind == NO_MESSAGE:
        return False
    if not 3 <= version <= 4 or not 0 <= found.body_length <= end - found.body:
        return False
    at[0] = found.body + found.body_length
    return True


# The plan of a schema.

cdef void take_arrow(Columns self) noexcept:
    """The layout of record batches that stand alone. What follows it is of the last schema."""
    self.own_ops, self.own_defaults = self.op_count, self.default_count
    lay_out_all(self, &self.ops[self.layouts[0].op])


cdef void lay_out_all(Columns self, Op* top) noexcept nogil:
    """Then `top` has what all have together."""
    cdef int place
    cdef int64_t* shifts
    top.node = top.buffer = top.view = 0
    for place in range(top.count):
        lay_out(self, &self.ops[top.first + place], top)
    if top.view >= self.shifts_capacity:
        shifts = <int64_t*>self._grown(self.shifts, (top.view + 1) * sizeof(int64_t))
        if self.failed:
            return
        self.shifts, self.shifts_capacity = shifts, top.view + 1
        self.shifts[0] = 0


cdef void lay_out(Columns self, Op* op, Op* next_) noexcept nogil:
    """next_: what comes next in a batch."""
    cdef int place
    op.node, op.buffer, op.view = next_.node, next_.buffer, next_.view
    next_.node += 1
    if op.code == R_OTHER:
        next_.buffer += op.number
    elif op.code == R_BYTES or op.code == R_LARGE_BYTES:
        next_.buffer += 3
    elif op.code == R_STRUCT or op.code == R_FIXED_LIST:
        next_.buffer += 1
    elif op.code != R_NULL:
        next_.buffer += 2
    next_.view += op.code == R_BYTES_VIEW
    for place in range(op.count):
        lay_out(self, &self.ops[op.first + place], next_)


cdef bint plan_schema(Columns self, Flat* flat, int64_t schema) noexcept nogil:
    """Make the plan of a value's schema, unless the last value had the same. False: it is none."""
    cdef int64_t count = 0, fields
    cdef uint8_t* text
    if flat.size == self.schema_size and memcmp(flat.start, self.schema, flat.size) == 0:
        return self.schema_fits
    self.schema_size = 0
    text = <uint8_t*>self._grown(self.schema, flat.size)
    if self.failed:
        return False
    self.schema = text
    memcpy(text, flat.start, flat.size)
    self.op_count, self.default_count = self.own_ops, self.own_defaults
    self.ops_max = self.own_ops + 1 + <int>min(
        flat.size // FIELD_BYTES_MIN, <int64_t>FLAT_FIELDS_MAX
    )
    fields = flat_vector(flat, schema, 1, 4, &count)
    self.schema_fits = (
        flat_number(flat, schema, 0, 2, 0) == 0  # The lowest byte first.
        and more_ops(self, 1)
        and plan_fields(self, flat, fields, count, self.own_ops, &self.nodes[0], False, 0)
        and not flat.broken
    )
    if self.schema_fits:
        lay_out_all(self, &self.ops[self.own_ops])
    if not self.failed:
        self.schema_size = flat.size
    return self.schema_fits and not self.failed


cdef bint more_ops(Columns self, int64_t count) noexcept nogil:
    """Room for so many, all zero, after those there are. False: that would be too many."""
    cdef Op* ops
    if count > self.ops_max - self.op_count:
        return False
    if self.op_count + count > self.ops_capacity:
        ops = <Op*>self._grown(self.ops, (2 * self.op_count + count + 16) * sizeof(Op))
        if self.failed:
            return False
        self.ops, self.ops_capacity = ops, <int>(2 * self.op_count + count + 16)
    memset(&self.ops[self.op_count], 0, count * sizeof(Op))
    self.op_count += <int>count
    return True


cdef bint plan_fields(
    Columns self, Flat* flat, int64_t fields, int64_t count, int parent, Node* node, bint is_pair,
    int depth
) noexcept nogil:
    """node: of the struct that they fill; NULL: none. is_pair: of a map, a key and a value, whatever
    their names are. False: it is no schema."""
    cdef int first = self.op_count, place
    cdef Node* column
    if depth > FLAT_DEPTH_MAX or flat.broken or not more_ops(self, count):
        return False
    self.ops[parent].first, self.ops[parent].count = first, <int>count
    if node != NULL and node.kind != STRUCT:
        node = NULL
    choose_fields(self, flat, fields, first, <int>count, node, is_pair)
    for place in range(<int>count):
        column = column_of(self, node, &self.ops[first + place])
        if not plan_field(
            self, flat, flat_led_to(flat, fields + 4 * place), first + place, column, False, depth
        ):
            return False
    if node != NULL:
        self.ops[parent].defaults = self.default_count
        for place in range(node.count):
            if self.nodes[node.first + place].holder < 0:
                self.defaults[self.default_count].place = place
                self.defaults[self.default_count].length = 0
                self.default_count += 1
        self.ops[parent].default_count = self.default_count - self.ops[parent].defaults
    return True


cdef void choose_fields(
    Columns self, Flat* flat, int64_t fields, int first, int count, Node* node, bint is_pair
) noexcept nogil:
    """Which field fills which column: of the keys of a column that are there, the first; of fields
    with one name the first. So none is filled twice."""
    cdef int place
    cdef int64_t name, length
    cdef Key* key
    cdef Node* column
    if node != NULL:
        for place in range(node.count):
            self.nodes[node.first + place].holder = -1
    for place in range(count):
        self.ops[first + place].place = -1
        if node == NULL:
            continue
        if is_pair and place:
            key = key_of(node, <const uint8_t*><const char*>b"value", 5)
        elif is_pair:
            key = key_of(node, <const uint8_t*><const char*>b"key", 3)
        else:
            name = flat_vector(flat, flat_led_to(flat, fields + 4 * place), 0, 1, &length)
            key = key_of(node, flat.start + name, length)
        if key == NULL:
            continue
        column = &self.nodes[key.field]
        if column.holder < 0 or key.rank < column.rank:
            if column.holder >= 0:
                self.ops[column.holder].place = -1
            column.holder, column.rank = first + place, key.rank
            self.ops[first + place].place = key.field - node.first


cdef bint plan_field(
    Columns self, Flat* flat, int64_t field, int at, Node* column, bint is_pair, int depth
) noexcept nogil:
    """column: that it fills; NULL: none. False: it is no field."""
    cdef int64_t count = 0, children = flat_vector(flat, field, 5, 4, &count)
    cdef int64_t kind = flat_number(flat, field, 2, 1, 0)
    cdef int place
    if flat_field(flat, field, 4, 4):  # Numbers, whose values are in a dictionary.
        self.ops[at].code, self.ops[at].number = R_OTHER, 2
        return not flat.broken
    if field == 0 or not plan_type(flat, kind, flat_table(flat, field, 3), &self.ops[at]):
        return False
    if self.ops[at].code < R_LIST:
        return count == 0
    if self.ops[at].code >= R_STRUCT:
        return plan_fields(
            self, flat, children, count, at, column if self.ops[at].code == R_STRUCT else NULL,
            is_pair, depth + 1,
        )
    if count != 1 or depth >= FLAT_DEPTH_MAX or not more_ops(self, 1):
        return False
    place = self.op_count - 1
    self.ops[at].first, self.ops[at].count = place, 1
    self.ops[place].place = -1
    if column != NULL:
        column = &self.nodes[column.first] if column.kind == LIST else NULL
    return plan_field(
        self, flat, flat_led_to(flat, children), place, column, kind == MAP_TYPE, depth + 1
    )


cdef bint plan_type(Flat* flat, int64_t kind, int64_t table, Op* op) noexcept nogil:
    """kind: as Arrow numbers types; table: what else is said of it. False: it is none."""
    cdef int64_t bits, unit
    op.code, op.number = R_OTHER, 2
    if kind == 1:
        op.code = R_NULL
    elif kind == 2:
        bits = flat_number(flat, table, 0, 4, 0)
        if bits != 8 and bits != 16 and bits != 32 and bits != 64:
            return False
        op.code = R_INT8 + (bits > 8) + (bits > 16) + (bits > 32)
        op.code += 0 if flat_number(flat, table, 1, 1, 0) else 4
    elif kind == 3:
        unit = flat_number(flat, table, 0, 2, 0)
        op.code = R_FLOAT if unit == 1 else R_DOUBLE if unit == 2 else R_OTHER
    elif kind == 4 or kind == 5:
        op.code = R_BYTES
    elif kind == 6:
        op.code = R_BOOLEAN
    elif kind == 7:
        unit = flat_number(flat, table, 1, 4, 0)
        bits = flat_number(flat, table, 2, 4, 128)
        if bits != 32 and bits != 64 and bits != 128 and bits != 256:
            return False
        if 0 <= unit <= DECIMAL_SCALE_MAX:
            op.code, op.number, op.scale = R_DECIMAL, <int>(bits // 8), <int>unit
    elif kind == 8:
        op.code = R_DATE64 if flat_number(flat, table, 0, 2, 1) else R_DATE32
    elif kind == 9:
        op.code = R_INT32 if flat_number(flat, table, 1, 4, 32) == 32 else R_INT64
    elif kind == 10:
        unit = flat_number(flat, table, 0, 2, 0)
        if not 0 <= unit <= 3:
            return False
        op.code = R_SECONDS + <int>unit
    elif kind == 12 or kind == MAP_TYPE:
        op.code = R_LIST
    elif kind == 13:
        op.code = R_STRUCT
    elif kind == 14:  # A union, dense or not.
        op.number = 2 if flat_number(flat, table, 0, 2, 0) else 1
    elif kind == 15 or kind == 16:
        op.code = R_FIXED if kind == 15 else R_FIXED_LIST
        op.number = <int>flat_number(flat, table, 0, 4, 0)
        return op.number >= 0
    elif kind == 18:
        op.code = R_INT64
    elif kind == 19 or kind == 20:
        op.code = R_LARGE_BYTES
    elif kind == 21:
        op.code = R_LARGE_LIST
    elif kind == 22:  # Runs.
        op.number = 0
    elif kind == 23 or kind == 24:
        op.code = R_BYTES_VIEW
    elif kind == 25 or kind == 26:  # Views of lists.
        op.number = 3
    else:
        return kind == 11  # An interval.
    return True


# Rows.

cdef int arrow_record(Columns self, const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Returns the number of its first error; 0: none."""
    cdef int64_t parts = PARTS_MIN + PARTS_PER_BYTE * <int64_t>(end - at)
    cdef ArrowMessage message, more
    cdef Op* top
    cdef Op* op
    cdef Node* field
    cdef int place, own = self.layouts[0].op, count = -1, error
    if not next_message(&at, end, &message) or message.kind == NO_MESSAGE:
        return self._nothing_fits(NOT_READ)
    if message.kind == SCHEMA_MESSAGE:
        if not plan_schema(self, &message.flat, message.header):
            return self._nothing_fits(NOT_READ)
        own = self.own_ops
        count = self.ops[own].count
        message.kind = DICTIONARY_MESSAGE
        while message.kind == DICTIONARY_MESSAGE:
            if not next_message(&at, end, &message):
                return self._nothing_fits(NOT_READ)
    if message.kind != BATCH_MESSAGE or not next_message(&at, end, &more):
        return self._nothing_fits(NOT_ONE_ROW if message.kind == NO_MESSAGE else NOT_READ)
    top = &self.ops[own]
    error = NOT_ONE_ROW if more.kind != NO_MESSAGE else open_batch(self, top, &message, &count)
    if error:
        return self._nothing_fits(error)
    for place in range(top.count):
        op = &self.ops[top.first + place]
        field = column_of(self, &self.nodes[0], op)
        if field == NULL:
            continue
        self.parts = parts
        if place < count:
            error = self._settled(op.place, arrow_value(self, op, field, 0), error)
        else:
            self._append_null(field)
            error = self._settled(op.place, NULL_VALUE, error)
    return add_top_defaults(self, top, parts, error)


cdef int open_batch(Columns self, Op* top, ArrowMessage* message, int* count) noexcept nogil:
    """Note where its columns are. count: how many there are; -1: it has no schema, and may lack the
    last ones of the layout. Returns an error, or 0."""
    cdef Flat* flat = &message.flat
    cdef int64_t nodes = 0, buffers = 0, views = 0, place, start, length, stop = 0
    cdef int64_t nodes_at = flat_vector(flat, message.header, 1, 16, &nodes)
    cdef int64_t buffers_at = flat_vector(flat, message.header, 2, 16, &buffers)
    cdef int64_t views_at = flat_vector(flat, message.header, 4, 8, &views)
    cdef Op* end
    length = flat_number(flat, message.header, 0, 8, 0)
    if flat_field(flat, message.header, 3, 4) or length != 1:
        return NOT_READ if flat.broken else NOT_ONE_ROW
    if count[0] < 0:
        count[0] = columns_of_nodes(self, top, nodes)
    if flat.broken or count[0] < 0:
        return NOT_READ
    end = &self.ops[top.first + count[0]] if count[0] < top.count else top
    if nodes != end.node or views != end.view:
        return NOT_READ
    for place in range(views):
        length = eight_at(flat.start + views_at + 8 * place)
        if not 0 <= length <= buffers - self.shifts[place]:
            return NOT_READ
        self.shifts[place + 1] = self.shifts[place] + length
    if buffers != end.buffer + self.shifts[views]:
        return NOT_READ
    self.batch_nodes, self.batch_buffers = flat.start + nodes_at, flat.start + buffers_at
    self.batch_body = message.body
    for place in range(buffers):
        start = eight_at(self.batch_buffers + 16 * place)
        length = eight_at(self.batch_buffers + 16 * place + 8)
        if length == 0:
            continue
        if start < stop or not 0 < length <= message.body_length - start:
            return NOT_READ
        stop = start + length
    for place in range(count[0]):
        if eight_at(self.batch_nodes + 16 * self.ops[top.first + place].node) != 1:
            return NOT_READ
    return 0


cdef int columns_of_nodes(Columns self, Op* top, int64_t nodes) noexcept nogil:
    """How many columns have so many nodes; -1: no number of them."""
    cdef int place
    if nodes == top.node:
        return top.count
    for place in range(top.count):
        if self.ops[top.first + place].node == nodes:
            return place
    return -1


cdef inline const uint8_t* in_buffer(
    Columns self, Op* op, int64_t which, int64_t index, int64_t width
) noexcept nogil:
    """The element of so many bytes, more than none, in a buffer of a column; NULL: it is not there."""
    cdef const uint8_t* entry = self.batch_buffers + 16 * (
        op.buffer + self.shifts[op.view] + which
    )
    if not 0 <= index < eight_at(entry + 8) // width:
        return NULL
    return self.batch_body + eight_at(entry) + index * width


cdef int arrow_value(Columns self, Op* op, Node* node, int64_t row) noexcept nogil:
    cdef const uint8_t* entry = self.batch_nodes + 16 * op.node
    cdef const uint8_t* at
    if op.code == R_NULL:
        self._append_null(node)
        return NULL_VALUE
    if op.code == R_OTHER or not row < min(eight_at(entry), <int64_t>ROWS_MAX):
        self.parts -= 1
        return MISFIT
    if eight_at(entry + 8) != 0:  # There are nulls.
        at = in_buffer(self, op, 0, row >> 3, 1)
        if at == NULL:
            return MISFIT
        if not at[0] >> (row & 7) & 1:
            self._append_null(node)
            return NULL_VALUE
    if op.code == R_STRUCT:
        return arrow_struct(self, op, node, row)
    if op.code >= R_LIST:
        return arrow_list(self, op, node, row)
    if R_BYTES <= op.code <= R_BYTES_VIEW:
        return arrow_bytes(self, op, node, row)
    return arrow_scalar(self, op, node, row)


cdef int arrow_scalar(Columns self, Op* op, Node* node, int64_t row) noexcept nogil:
    """What has one length in each row."""
    cdef int width = 8
    cdef int64_t whole
    cdef float single
    cdef double number
    cdef const uint8_t* at
    if op.code == R_BOOLEAN:
        at = in_buffer(self, op, 1, row >> 3, 1)
        return MISFIT if at == NULL else self._put_boolean(node, at[0] >> (row & 7) & 1)
    if op.code == R_FIXED or op.code == R_DECIMAL:
        width = op.number
        if width == 0:
            return self._put_bytes(node, NULL, 0)
    elif op.code <= R_UINT64:
        width = 1 << ((op.code - R_INT8) & 3)
    elif op.code == R_FLOAT or op.code == R_DATE32:
        width = 4
    at = in_buffer(self, op, 1, row, width)
    if at == NULL:
        return MISFIT
    if op.code == R_FIXED:
        return self._put_bytes(node, at, width)
    if op.code == R_DECIMAL:
        return arrow_decimal(self, op, node, at)
    if op.code == R_DOUBLE:
        memcpy(&number, at, 8)
        return self._put_double(node, number)
    if op.code == R_FLOAT:
        memcpy(&single, at, 4)
        return self._put_double(node, single)
    whole = whole_at(at, width)
    if op.code > R_UINT64:
        return arrow_moment(self, op, node, whole)
    if op.code == R_UINT64 and whole < 0:
        return MISFIT
    if op.code > R_INT64 and width < 8:
        whole &= (<int64_t>1 << 8 * width) - 1
    return self._put_integer(node, whole)


cdef int arrow_decimal(Columns self, Op* op, Node* node, const uint8_t* at) noexcept nogil:
    """The lowest byte comes first."""
    cdef uint8_t turned[32]
    cdef int place
    if op.number > 32:
        return MISFIT
    for place in range(op.number):
        turned[place] = at[op.number - 1 - place]
    return put_decimal(self, node, turned, op.number, op.scale)


cdef int arrow_moment(Columns self, Op* op, Node* node, int64_t whole) noexcept nogil:
    cdef int64_t many = <int64_t>86_400_000
    if node.kind != (DATE if op.code <= R_DATE64 else TIMESTAMP):
        return MISFIT
    if op.code == R_DATE64:
        return self._put_moment(node, whole // many - (whole % many < 0))
    if op.code == R_NANOS:
        return self._put_moment(node, whole // 1000 - (whole % 1000 < 0))
    if R_SECONDS <= op.code <= R_SECONDS + 1:
        many = 1_000_000 if op.code == R_SECONDS else 1000
        if not -(<int64_t>1 << 60) // many < whole < (<int64_t>1 << 60) // many:
            return MISFIT  # Far beyond the year 9999, and it would not fit 64 bits below.
        whole *= many
    return self._put_moment(node, whole)


cdef int arrow_bytes(Columns self, Op* op, Node* node, int64_t row) noexcept nogil:
    cdef int width = 8 if op.code == R_LARGE_BYTES else 4
    cdef int64_t which = 2, start = 0, length
    cdef const uint8_t* at
    cdef const uint8_t* next_
    if op.code == R_BYTES_VIEW:
        at = in_buffer(self, op, 1, row, 16)
        if at == NULL:
            return MISFIT
        length = <int32_t>four_at(at)
        if length < 0:
            return MISFIT
        if length <= 12:
            return self._put_bytes(node, at + 4, length)
        which += <int32_t>four_at(at + 8)
        start = <int32_t>four_at(at + 12)
        if not 2 <= which < 2 + self.shifts[op.view + 1] - self.shifts[op.view]:
            return MISFIT
        self.parts -= PARTS_PER_BYTE * length  # Many may show the same bytes.
        if self.parts < 0:
            return MISFIT
    else:
        at = in_buffer(self, op, 1, row, width)
        next_ = in_buffer(self, op, 1, row + 1, width)
        if at == NULL or next_ == NULL:
            return MISFIT
        start = whole_at(at, width)
        length = whole_at(next_, width)
        if not 0 <= start <= length:
            return MISFIT
        length -= start
    if length == 0:
        return self._put_bytes(node, NULL, 0)
    at = in_buffer(self, op, which, start, 1)
    if at == NULL or in_buffer(self, op, which, start + length - 1, 1) == NULL:
        return MISFIT
    return self._put_bytes(node, at, length)


cdef int arrow_list(Columns self, Op* op, Node* node, int64_t row) noexcept nogil:
    cdef int width = 8 if op.code == R_LARGE_LIST else 4
    cdef int64_t start, stop, length
    cdef const uint8_t* at
    cdef const uint8_t* next_
    cdef Node* element
    self.parts -= 1
    if node.kind != LIST or not self._reserve(node):
        return MISFIT
    if op.code == R_FIXED_LIST:
        start = row * op.number
        stop = start + op.number
    else:
        at = in_buffer(self, op, 1, row, width)
        next_ = in_buffer(self, op, 1, row + 1, width)
        if at == NULL or next_ == NULL:
            return MISFIT
        start, stop = whole_at(at, width), whole_at(next_, width)
        if not 0 <= start <= stop:
            return MISFIT
    element = &self.nodes[node.first]
    length = element.length
    while start < stop:
        if arrow_value(self, &self.ops[op.first], element, start) == MISFIT or self.parts < 0:
            self._cut(element, length)
            return MISFIT
        start += 1
    node.offsets[node.length + 1] = <int32_t>element.length
    return self._finish_row(node, True)


cdef int arrow_struct(Columns self, Op* op, Node* node, int64_t row) noexcept nogil:
    cdef int place, outcome
    cdef bint fits = True
    cdef Op* within
    cdef Node* field
    self.parts -= 1
    if node.kind != STRUCT or not self._reserve(node):
        return MISFIT
    for place in range(op.count):
        within = &self.ops[op.first + place]
        field = column_of(self, node, within)
        if field == NULL:
            self.parts -= 1  # To pass over it takes time, too.
        elif fits:
            outcome = arrow_value(self, within, field, row)
            fits = outcome != MISFIT and self.parts >= 0 and (
                outcome == FITS or not field.required
            )
    return finish_struct(self, op, node, fits)
