# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: binding=False, always_allow_keywords=False, initializedcheck=False
"""Decodes fields of a schema into columns as Arrow has them: from JSON, as the compiled twin of
`typed_json.decoded`, and from formats that have a layout (_typed_layouts.pxi, _typed_arrow.pxi).

A value is gone through once, all of it, so that what is not JSON is noticed. Of an object, the
places of the wanted keys are noted; what stands there is then converted, and within a struct or a
list the same again. Nothing recurses deeper than the types are nested. `check` does the same with
columns that never grow.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, getenv, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strcmp

if getenv("JETSTREAM_PURE") != NULL and strcmp(getenv("JETSTREAM_PURE"), "0") != 0:
    raise ImportError("JETSTREAM_PURE is set")

cdef extern from *:
    """
    #include <math.h>
    #include <stdint.h>
    #include <string.h>
    #ifdef __SSE2__
    #include <emmintrin.h>
    #endif

    #define EACH(byte) (0x0101010101010101ULL * (byte))

    /* The first byte from `at` on that is no plain character of a string: a quote, a backslash, a
       control character, or of a character beyond ASCII. Sixteen bytes are looked at in one step,
       or eight; `limit` is where the memory ends, which may be after `end`. */
    static inline const uint8_t *plain_end(
        const uint8_t *at, const uint8_t *end, const uint8_t *limit)
    {
    #ifdef __SSE2__
        while (limit - at >= 16) {
            __m128i some = _mm_loadu_si128((const __m128i *)at);
            __m128i odd = _mm_or_si128(
                _mm_or_si128(_mm_cmpeq_epi8(some, _mm_set1_epi8(0x22)),
                             _mm_cmpeq_epi8(some, _mm_set1_epi8(0x5C))),
                /* As signed numbers, those beyond ASCII are less than 32, too. */
                _mm_cmplt_epi8(some, _mm_set1_epi8(0x20)));
            int found = _mm_movemask_epi8(odd);
            if (found) {
                at += __builtin_ctz(found);
                return at < end ? at : end;
            }
            at += 16;
            if (at >= end)
                return end;
        }
    #endif
        while (limit - at >= 8) {
            uint64_t word, quote, escape, found;
            memcpy(&word, at, 8);
            quote = word ^ EACH(0x22);
            escape = word ^ EACH(0x5C);
            found = ((quote - EACH(1)) & ~quote) | ((escape - EACH(1)) & ~escape);
            found |= ((word - EACH(0x20)) & ~word) | word;
            found &= EACH(0x80);
            if (found) {
                at += __builtin_ctzll(found) >> 3;
                return at < end ? at : end;
            }
            at += 8;
            if (at >= end)
                return end;
        }
        while (at < end && *at >= 0x20 && *at < 0x80 && *at != 0x22 && *at != 0x5C)
            at++;
        return at;
    }

    /* Whether the text is here; `text` has 16 bytes at least. */
    static inline int is_here(
        const uint8_t *at, const uint8_t *limit, const uint8_t *text, int length)
    {
    #ifdef __SSE2__
        if (length <= 16 && limit - at >= 16) {
            __m128i same = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)at),
                                          _mm_loadu_si128((const __m128i *)text));
            return ((unsigned)_mm_movemask_epi8(same) | ~0U << length) == ~0U;
        }
    #endif
        return limit - at >= length && memcmp(at, text, length) == 0;
    }

    static const uint64_t TEN_TO[] = {
        1ULL, 10ULL, 100ULL, 1000ULL, 10000ULL, 100000ULL, 1000000ULL, 10000000ULL, 100000000ULL,
        1000000000ULL, 10000000000ULL, 100000000000ULL, 1000000000000ULL, 10000000000000ULL,
        100000000000000ULL, 1000000000000000ULL, 10000000000000000ULL, 100000000000000000ULL,
        1000000000000000000ULL, 10000000000000000000ULL};

    /* The double next to digits * 10^exponent, |exponent| <= 19. The whole numbers below are exact,
       so it is rounded once. */
    static double scaled(uint64_t digits, int exponent) {
        unsigned __int128 whole;
        uint64_t kept, high;
        int shift = 0, drop, rest = 0;
        if (digits < (1ULL << 53) && -16 < exponent && exponent < 16)
            return exponent < 0 ? (double)digits / (double)TEN_TO[-exponent]
                                : (double)digits * (double)TEN_TO[exponent];
        if (digits == 0)
            return 0.0;
        if (exponent < 0) {
            shift = 64 + __builtin_clzll(digits);
            whole = (unsigned __int128)digits << shift;
            rest = whole % TEN_TO[-exponent] != 0;
            whole /= TEN_TO[-exponent];
        } else {
            whole = (unsigned __int128)digits * TEN_TO[exponent];
        }
        high = (uint64_t)(whole >> 64);
        drop = (high ? 128 - __builtin_clzll(high) : 64 - __builtin_clzll((uint64_t)whole)) - 53;
        if (drop <= 0)
            return ldexp((double)(uint64_t)whole, -shift);
        kept = (uint64_t)(whole >> drop);
        whole &= ((unsigned __int128)1 << drop) - 1;
        if (whole > (unsigned __int128)1 << (drop - 1)
            || (whole == (unsigned __int128)1 << (drop - 1) && (rest || (kept & 1))))
            kept++;
        return ldexp((double)kept, drop - shift);
    }

    /* The text of a whole number, of at most 16 bytes, the highest first, in two's complement: with
       so many digits after the point, at most 38. Returns its length, at most 64. */
    static int decimal_text(const uint8_t *at, int64_t length, int scale, uint8_t *into) {
        int negative = length > 0 && at[0] & 0x80, places = 0;
        unsigned __int128 whole = negative ? ~(unsigned __int128)0 : 0;
        uint8_t digits[64], *out = into;
        for (; length > 0; length--)
            whole = whole << 8 | *at++;
        if (negative)
            whole = -whole;
        for (; whole || places <= scale; whole /= 10)
            digits[places++] = '0' + (uint8_t)(whole % 10);
        if (negative)
            *out++ = '-';
        while (places > 0) {
            *out++ = digits[--places];
            if (places == scale && scale > 0)
                *out++ = '.';
        }
        return (int)(out - into);
    }
    """
    const uint8_t* plain_end(
        const uint8_t* at, const uint8_t* end, const uint8_t* limit
    ) noexcept nogil
    bint is_here(
        const uint8_t* at, const uint8_t* limit, const uint8_t* text, int length
    ) noexcept nogil
    double scaled(uint64_t digits, int exponent) noexcept nogil
    int decimal_text(
        const uint8_t* at, int64_t length, int scale, uint8_t* into
    ) noexcept nogil
    bint isfinite(double) noexcept nogil


# As typed_json.KINDS numbers them.
cdef enum:
    INT = 0
    BIGINT = 1
    DOUBLE = 2
    BOOLEAN = 3
    STRING = 4
    TIMESTAMP = 5
    DATE = 6
    BINARY = 7
    LIST = 8
    STRUCT = 9

# What became of a value. A misfit has appended nothing.
cdef enum:
    MISFIT = -1
    NULL_VALUE = 0
    FITS = 1

# What `_add` returns in place of a row.
cdef enum:
    ALL_FIT = -1
    WRONG = -2

# As typed_values.py numbers formats.
cdef enum:
    AVRO = 1
    PROTOBUF = 2
    ARROW = 3

# As typed_json numbers errors.
cdef enum:
    NOT_JSON = 1
    NO_OBJECT = 2
    FIRST_FIELD = 3

cdef enum:
    NAME_MAX = 64  # As schema.py has it.
    PARTS_MIN = 10_000  # As typed_json has them.
    PARTS_PER_BYTE = 8
    ROWS_MAX = 0x7FFFFFFF
    SHORT = 64 * 1024  # Done in less time than it takes to get the GIL back.
    GUESSES = 32
    GUESS_MAX = NAME_MAX + 3


cdef struct Key:
    const uint8_t* text  # NULL: no key is here.
    Py_ssize_t length
    int field
    int rank  # Of the keys of a field that are there, the one with the least counts.


# What the last object had as its first key, its second, and so on: most objects have the same.
cdef struct Guess:
    uint8_t text[GUESS_MAX]  # With quotes and colon.
    int length  # 0: nothing is known.
    Key* key


cdef struct Node:
    int kind
    bint required
    int first, count  # The nodes of a struct's fields, or of a list's element.
    int parts  # Of a null: the values that are made for it.
    int needed  # How many fields of a struct are required.
    Node* found  # Of a struct: the fields that the last object has.
    Key* keys  # Of a struct: a hash table.
    uint32_t mask
    uint64_t lengths  # Bit n - 1: a key has n bytes.
    Guess* guesses
    # What the last object had for this field: [start, stop); NULL: nothing.
    const uint8_t* start
    const uint8_t* stop
    int rank
    Node* next_found
    int holder  # The op of a schema of Arrow that fills it; -1: none.
    # The column.
    int64_t length, nulls, capacity
    uint8_t* validity
    uint8_t* data  # Numbers and bits; of text, all of it.
    int64_t data_capacity
    int32_t* offsets  # Of text and of lists.


# A value in the bytes of a format that has a layout, and what is within it: layouts.Part.
cdef struct Op:
    int code  # As layouts.KINDS number them.
    int place  # Which field of its struct it fills; -1: it is passed over.
    int number  # Of a field of Protobuf; the size of what is fixed.
    int scale  # Of a decimal.
    int label
    int first, count  # Those within it.
    int symbols, symbol_count  # Of an enum, by number.
    int defaults, default_count  # Of a record: the fields that it lacks.
    int rival  # The first one of its oneof.
    int holder  # Of the first one of a oneof: which of them is set; -1: none.
    int64_t head, tail  # What the last message has for this field; -1: nothing.
    int node, buffer, view  # Its first in a batch of Arrow.


cdef struct Symbol:
    const uint8_t* text
    Py_ssize_t length
    int64_t number


cdef struct Default:
    int place
    const uint8_t* text  # JSON.
    Py_ssize_t length  # 0: it is null.


cdef struct Layout:
    int64_t id  # -1: nothing is in front of a value.
    int op


# What a message has for a field: [start, stop), of a wire type.
cdef struct Seen:
    const uint8_t* start
    const uint8_t* stop
    int wire
    int64_t next  # For the same field; -1: none.


cdef class Block:
    """Memory that a column was written into: a buffer for Arrow."""

    cdef void* start
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.start, self.size, 1, flags)

    def __dealloc__(self):
        free(self.start)


cdef object block_of(void* start, Py_ssize_t size):
    cdef Block block
    if start == NULL:
        return b""
    block = Block()
    block.start = start
    block.size = size
    return block


cdef inline const uint8_t* skip_space(const uint8_t* at, const uint8_t* end) noexcept nogil:
    while at < end and at[0] <= 32 and (at[0] == 32 or at[0] == 10 or at[0] == 13 or at[0] == 9):
        at += 1
    return at


cdef int hex_of(const uint8_t* at) noexcept nogil:
    """Of four digits; -1: they are none."""
    cdef int number = 0, place
    cdef uint8_t byte
    for place in range(4):
        byte = at[place]
        if 48 <= byte <= 57:
            byte -= 48
        elif 97 <= byte <= 102:
            byte -= 87
        elif 65 <= byte <= 70:
            byte -= 55
        else:
            return -1
        number = number * 16 + byte
    return number


cdef const uint8_t* skip_escape(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """at: at the backslash. NULL: it is no JSON; so is half of a surrogate pair."""
    cdef int code
    if end - at < 2:
        return NULL
    if at[1] != 117:  # u
        return at + 2 if at[1] != 0 and memchr(b'"\\/bfnrt', at[1], 8) != NULL else NULL
    if end - at < 6:
        return NULL
    code = hex_of(at + 2)
    if code < 0 or 0xDC00 <= code <= 0xDFFF:
        return NULL
    if not 0xD800 <= code <= 0xDBFF:
        return at + 6
    if end - at < 12 or at[6] != 92 or at[7] != 117:
        return NULL
    return at + 12 if 0xDC00 <= hex_of(at + 8) <= 0xDFFF else NULL


cdef const uint8_t* skip_wide(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """A character beyond ASCII. NULL: it is not UTF-8."""
    cdef uint8_t byte = at[0], least = 0x80, most = 0xBF
    cdef int more, place
    if byte < 0xC2 or byte > 0xF4:
        return NULL
    more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
    if end - at <= more:
        return NULL
    if byte == 0xE0:
        least = 0xA0
    elif byte == 0xED:
        most = 0x9F
    elif byte == 0xF0:
        least = 0x90
    elif byte == 0xF4:
        most = 0x8F
    if not least <= at[1] <= most:
        return NULL
    for place in range(2, more + 1):
        if not 0x80 <= at[place] <= 0xBF:
            return NULL
    return at + more + 1


cdef bint is_utf8(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef uint64_t word
    while at < end:
        if end - at >= 8:
            memcpy(&word, at, 8)
            if word & <uint64_t>0x8080808080808080 == 0:
                at += 8
                continue
        at = at + 1 if at[0] < 0x80 else skip_wide(at, end)
        if at == NULL:
            return False
    return True


cdef inline const uint8_t* string_end(
    const uint8_t* at, const uint8_t* end, const uint8_t* limit, bint* escaped
) noexcept nogil:
    """at: after the quote. Returns the place of the other one; NULL: it is no JSON."""
    while True:
        at = plain_end(at, end, limit)
        if at >= end:
            return NULL
        if at[0] == 34:
            return at
        if at[0] == 92:
            escaped[0] = True
            at = skip_escape(at, end)
        elif at[0] >= 0x80:
            at = skip_wide(at, end)
        else:
            return NULL
        if at == NULL:
            return NULL


cdef inline const uint8_t* skip_digits(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """NULL: there is none."""
    cdef const uint8_t* start = at
    while at < end and 48 <= at[0] <= 57:
        at += 1
    return at if at > start else NULL


cdef inline const uint8_t* skip_word(
    const uint8_t* at, const uint8_t* end, const char* word, Py_ssize_t length
) noexcept nogil:
    return at + length if end - at >= length and memcmp(at, word, length) == 0 else NULL


cdef inline const uint8_t* skip_scalar(
    const uint8_t* at, const uint8_t* end, const uint8_t* limit
) noexcept nogil:
    """NULL: it is no JSON."""
    cdef uint8_t byte = at[0]
    cdef bint escaped = False
    if byte == 34:
        at = string_end(at + 1, end, limit, &escaped)
        return at + 1 if at != NULL else NULL
    if byte == 116:
        return skip_word(at, end, b"true", 4)
    if byte == 102:
        return skip_word(at, end, b"false", 5)
    if byte == 110:
        return skip_word(at, end, b"null", 4)
    if byte == 78:
        return skip_word(at, end, b"NaN", 3)
    if byte == 45:
        at += 1
    if at < end and at[0] == 73:
        return skip_word(at, end, b"Infinity", 8)
    if at < end and at[0] == 48:
        at += 1
    else:
        at = skip_digits(at, end)
        if at == NULL:
            return NULL
    if at < end and at[0] == 46:
        at = skip_digits(at + 1, end)
        if at == NULL:
            return NULL
    if at < end and (at[0] == 101 or at[0] == 69):
        at += 1
        if at < end and (at[0] == 43 or at[0] == 45):
            at += 1
        at = skip_digits(at, end)
    return at


cdef Py_ssize_t unescaped(const uint8_t* at, const uint8_t* end, uint8_t* into) noexcept nogil:
    """Writes the text of a string that was checked; returns how many bytes, at most as many."""
    cdef uint8_t* out = into
    cdef const uint8_t* found
    cdef Py_ssize_t length
    cdef uint32_t code
    while at < end:
        found = <const uint8_t*>memchr(at, 92, end - at)
        length = (found if found != NULL else end) - at
        memcpy(out, at, length)
        out += length
        at += length
        if found == NULL:
            break
        if at[1] != 117:
            code = at[1]
            if code == 98:
                code = 8
            elif code == 102:
                code = 12
            elif code == 110:
                code = 10
            elif code == 114:
                code = 13
            elif code == 116:
                code = 9
            out[0] = <uint8_t>code
            out += 1
            at += 2
            continue
        code = <uint32_t>hex_of(at + 2)
        at += 6
        if 0xD800 <= code <= 0xDBFF:
            code = 0x10000 + ((code - 0xD800) << 10) + (<uint32_t>hex_of(at + 2) - 0xDC00)
            at += 6
        out = write_character(code, out)
    return out - into


cdef uint8_t* write_character(uint32_t code, uint8_t* out) noexcept nogil:
    """As UTF-8; returns the place after it."""
    if code < 0x80:
        out[0] = <uint8_t>code
        return out + 1
    if code < 0x800:
        out[0] = <uint8_t>(0xC0 | code >> 6)
        out[1] = <uint8_t>(0x80 | code & 63)
        return out + 2
    if code < 0x10000:
        out[0] = <uint8_t>(0xE0 | code >> 12)
        out[1] = <uint8_t>(0x80 | code >> 6 & 63)
        out[2] = <uint8_t>(0x80 | code & 63)
        return out + 3
    out[0] = <uint8_t>(0xF0 | code >> 18)
    out[1] = <uint8_t>(0x80 | code >> 12 & 63)
    out[2] = <uint8_t>(0x80 | code >> 6 & 63)
    out[3] = <uint8_t>(0x80 | code & 63)
    return out + 4


# Nobody can choose the names of fields so that all have one place in the table.
cdef uint32_t SEED = <uint32_t>(hash("jetstream") & 0xFFFFFFFF)


cdef inline uint32_t hash_of(const uint8_t* text, Py_ssize_t length) noexcept nogil:
    """FNV-1a, mixed."""
    cdef uint32_t found = SEED
    cdef Py_ssize_t place
    for place in range(length):
        found = (found ^ text[place]) * 16777619
    found = (found ^ found >> 16) * <uint32_t>0x85EBCA6B
    return found ^ found >> 13


cdef Key* key_of(Node* node, const uint8_t* text, Py_ssize_t length) noexcept nogil:
    """NULL: the struct has no such key."""
    cdef Key* key
    cdef uint32_t place
    if length < 1 or length > NAME_MAX or not node.lengths >> (length - 1) & 1:
        return NULL
    place = hash_of(text, length) & node.mask
    while True:
        key = &node.keys[place]
        if key.text == NULL:
            return NULL
        if key.length == length and memcmp(key.text, text, length) == 0:
            return key
        place = (place + 1) & node.mask


cdef bint to_integer(const uint8_t* at, const uint8_t* end, int64_t* number) noexcept nogil:
    cdef bint negative = at[0] == 45
    cdef uint64_t found = 0
    at += negative
    if not 1 <= end - at <= 19:
        return False
    while at < end:
        if not 48 <= at[0] <= 57:
            return False
        found = found * 10 + (at[0] - 48)
        at += 1
    if found > <uint64_t>0x7FFFFFFFFFFFFFFF + negative:
        return False
    number[0] = <int64_t>(0 - found) if negative else <int64_t>found
    return True


cdef bint to_double(const uint8_t* at, const uint8_t* end, double* number) noexcept nogil:
    """at: at a number of JSON. False: it is not finite."""
    cdef const uint8_t* start = at
    cdef uint64_t digits = 0
    cdef int count = 0, exponent = 0, given = 0
    cdef bint negative = at[0] == 45, small, after_point = False
    at += negative
    if not 48 <= at[0] <= 57:
        return False
    while at < end and at[0] != 101 and at[0] != 69:
        if at[0] == 46:
            after_point = True
        else:
            digits = digits * 10 + (at[0] - 48)
            count += digits != 0  # Zeros in front do not count.
            exponent -= after_point
            if count > 19:
                return to_double_by_python(start, end, number)
        at += 1
    if at < end:
        at += 1
        small = at[0] == 45
        at += at[0] == 45 or at[0] == 43
        while at < end:
            if given < 10_000:
                given = given * 10 + (at[0] - 48)
            at += 1
        exponent += -given if small else given
    if digits != 0 and (given >= 10_000 or not -19 <= exponent <= 19):
        return to_double_by_python(start, end, number)
    number[0] = scaled(digits, exponent if digits else 0)
    if negative:
        number[0] = -number[0]
    return True


cdef bint to_double_by_python(
    const uint8_t* at, const uint8_t* end, double* number
) noexcept with gil:
    """The rare ones: many digits, or large exponents."""
    try:
        number[0] = float((<const char*>at)[: end - at])
    except Exception:
        return False
    return isfinite(number[0])


cdef int is_finite(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Whether a number of JSON is finite as a double: 1, 0; -1: only its conversion tells."""
    cdef uint64_t digits = 0  # The first 17.
    cdef int64_t count = 0, power = 0, given = 0  # The number is 0.digits * 10^power.
    cdef bint after_point = False, small
    at += at[0] == 45
    if at[0] == 73:  # Infinity.
        return 0
    while at < end and at[0] != 101 and at[0] != 69:
        if at[0] == 46:
            after_point = True
        elif count == 0 and at[0] == 48:
            power -= after_point
        else:
            if count < 17:
                digits = digits * 10 + (at[0] - 48)
            count += 1
            power += not after_point
        at += 1
    if count == 0:
        return 1
    if at < end:
        at += 1
        small = at[0] == 45
        at += at[0] == 45 or at[0] == 43
        while at < end:
            given = min(given * 10 + (at[0] - 48), <int64_t>1_000_000_000)
            at += 1
        power += -given if small else given
    if power != 309:
        return power < 309
    while count < 17:
        digits *= 10
        count += 1
    if digits == <uint64_t>17976931348623158ULL:
        return -1  # The largest double is 1.79769313486231570814…e308, and is rounded to.
    return digits < <uint64_t>17976931348623158ULL


cdef bint two_digits(const uint8_t* at, int* number) noexcept nogil:
    number[0] = (at[0] - 48) * 10 + at[1] - 48
    return 48 <= at[0] <= 57 and 48 <= at[1] <= 57


cdef bint to_date(const uint8_t* at, Py_ssize_t length, int64_t* days) noexcept nogil:
    """Days since 1970 of ten characters as 2026-01-31. Any year; False: no date."""
    cdef int century = 0, year = 0, month = 0, day = 0, most
    cdef int64_t era, shifted
    if length != 10 or at[4] != 45 or at[7] != 45:
        return False
    if not (two_digits(at, &century) and two_digits(at + 2, &year)):
        return False
    if not (two_digits(at + 5, &month) and two_digits(at + 8, &day)):
        return False
    year += century * 100
    if not 1 <= month <= 12:
        return False
    most = 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31
    if month == 2:
        most = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    if not 1 <= day <= most or year < 1:
        return False
    # Years that begin in March: their last day is the leap day.
    shifted = year - (month <= 2)
    era = shifted // 400
    shifted -= era * 400
    days[0] = era * 146097 + shifted * 365 + shifted // 4 - shifted // 100 - 719468
    days[0] += (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return True


# 0001-01-02 and 9999-12-30, in days since 1970.
cdef enum:
    DAY_MIN = -719161
    DAY_MAX = 2932895


cdef bint to_time(const uint8_t* at, Py_ssize_t length, int64_t* moment) noexcept nogil:
    """Microseconds since 1970 of text as 2026-01-31T10:00:00.123456Z."""
    cdef const uint8_t* end = at + length
    cdef int64_t days = 0, found
    cdef int64_t day_us = <int64_t>86_400_000_000
    cdef int hour = 0, minute = 0, second = 0, fraction = 0, places = 0, away = 0
    cdef bint behind
    if length < 16 or not to_date(at, 10, &days) or (at[10] != 84 and at[10] != 32):
        return False
    if not two_digits(at + 11, &hour) or at[13] != 58 or not two_digits(at + 14, &minute):
        return False
    at += 16
    if end - at >= 3 and at[0] == 58:
        if not two_digits(at + 1, &second):
            return False
        at += 3
        if end - at >= 2 and at[0] == 46:
            at += 1
            while at < end and 48 <= at[0] <= 57 and places < 7:
                fraction = fraction * 10 + at[0] - 48
                places += 1
                at += 1
            if not 1 <= places <= 6:
                return False
            while places < 6:
                fraction *= 10
                places += 1
    if hour > 23 or minute > 59 or second > 59:
        return False
    found = days * day_us + (hour * 3600 + minute * 60 + second) * <int64_t>1_000_000 + fraction
    if end - at == 6 and (at[0] == 43 or at[0] == 45) and at[3] == 58:
        behind = at[0] == 45
        if not (two_digits(at + 1, &hour) and two_digits(at + 4, &minute)):
            return False
        if hour > 15 or minute > 59:
            return False
        away = hour * 3600 + minute * 60
        found += (away if behind else -away) * <int64_t>1_000_000
    elif end - at == 1:
        if at[0] != 90:
            return False
    elif at != end:
        return False
    moment[0] = found
    return DAY_MIN * day_us <= found <= DAY_MAX * day_us


cdef int sextet(uint8_t byte) noexcept nogil:
    if 65 <= byte <= 90:
        return byte - 65
    if 97 <= byte <= 122:
        return byte - 71
    if 48 <= byte <= 57:
        return byte + 4
    return 62 if byte == 43 else 63 if byte == 47 else -1


cdef Py_ssize_t from_base64(const uint8_t* at, Py_ssize_t length, uint8_t* into) noexcept nogil:
    """How many bytes it is; -1: it is no base64. into: may be the same memory."""
    cdef Py_ssize_t place, padding = 0, written = 0
    cdef int found
    cdef uint32_t bits = 0
    if length % 4:
        return -1
    while padding < 2 and length and at[length - 1] == 61:
        length -= 1
        padding += 1
    for place in range(length):
        found = sextet(at[place])
        if found < 0:
            return -1
        bits = bits << 6 | <uint32_t>found
        if place % 4:
            into[written] = <uint8_t>(bits >> (6 - 2 * (place % 4)))
            written += 1
    return written


cdef class Columns:
    """Columns that grow by records: `add` them, then `take` what they have become.

    fields: (kind, required, keys, fields of a struct or the element of a list), of the columns.
    layouts: for other formats than JSON, as typed_values.py makes them.
    """

    cdef Node* nodes  # The first is the struct of all columns.
    cdef int node_count
    cdef uint8_t* levels  # The brackets that close what was opened, within a value.
    cdef Py_ssize_t levels_capacity
    cdef uint8_t* scratch
    cdef Py_ssize_t scratch_capacity
    cdef int32_t* errors
    cdef int64_t errors_capacity, misfits
    cdef const uint8_t* limit  # Where the memory of the values ends.
    cdef int64_t parts  # How many values may still be made for this field of this record.
    cdef bint checking  # Only whether values fit counts: columns stay as they are.
    cdef bint failed  # Memory has run out.
    cdef object names  # The bytes that keys, symbols and defaults point into.
    cdef int format
    cdef Op* ops
    cdef int op_count
    cdef Symbol* symbols
    cdef int symbol_count
    cdef Default* defaults
    cdef int default_count
    cdef Layout* layouts
    cdef int layout_count, last_layout
    cdef int64_t* path  # Which message of its file it is, for Protobuf.
    cdef int path_length
    cdef int64_t steps  # How many values of this record may still be looked at.
    cdef Seen* seen  # What messages have for fields, those of the messages around first.
    cdef int64_t seen_count, seen_capacity
    cdef int own_ops, own_defaults  # Then come those of the last schema of Arrow.
    cdef int ops_max, ops_capacity
    cdef uint8_t* schema  # The last one.
    cdef int64_t schema_size
    cdef bint schema_fits
    cdef int64_t* shifts  # How many buffers more the views before each one have.
    cdef int64_t shifts_capacity
    cdef const uint8_t* batch_nodes
    cdef const uint8_t* batch_buffers
    cdef const uint8_t* batch_body

    def __cinit__(self, fields, layouts=None):
        self.names = []
        self.nodes = <Node*>calloc(1 + _count(fields), sizeof(Node))
        if self.nodes == NULL:
            raise MemoryError
        self.node_count = 1
        self.nodes[0].kind = STRUCT
        self._build(0, fields)
        if layouts is not None:
            take_layouts(self, layouts[0], layouts[1])

    def __dealloc__(self):
        cdef int place
        if self.nodes != NULL:
            for place in range(self.node_count):
                free(self.nodes[place].keys)
                free(self.nodes[place].guesses)
                free(self.nodes[place].validity)
                free(self.nodes[place].data)
                free(self.nodes[place].offsets)
        free(self.nodes)
        free(self.levels)
        free(self.scratch)
        free(self.errors)
        free(self.ops)
        free(self.symbols)
        free(self.defaults)
        free(self.layouts)
        free(self.path)
        free(self.seen)
        free(self.schema)
        free(self.shifts)

    cdef _build(self, int parent, fields):
        cdef int first = self.node_count, place, rank
        cdef Node* node = &self.nodes[parent]
        cdef Node* each
        cdef Key* key
        cdef uint32_t size = 4, at
        cdef bytes name
        node.first, node.count = first, len(fields)
        self.node_count += node.count
        if node.kind == STRUCT:
            while size < 2 * sum([len(keys) for _, _, keys, _ in fields]):
                size *= 2
            node.mask = size - 1
            node.keys = <Key*>calloc(size, sizeof(Key))
            node.guesses = <Guess*>calloc(GUESSES, sizeof(Guess))
            if node.keys == NULL or node.guesses == NULL:
                raise MemoryError
        for place, (kind, required, keys, inner) in enumerate(fields):
            each = &self.nodes[first + place]
            each.kind, each.required = kind, required
            node.needed += each.required
            for rank, name in enumerate(keys):
                self.names.append(name)
                if not 1 <= len(name) <= NAME_MAX:
                    raise ValueError("the name is too long")
                at = hash_of(<const uint8_t*><const char*>name, len(name)) & node.mask
                while node.keys[at].text != NULL:
                    at = (at + 1) & node.mask
                key = &node.keys[at]
                key.text = <const uint8_t*><const char*>name
                key.length, key.field, key.rank = len(name), first + place, rank
                node.lengths |= <uint64_t>1 << (len(name) - 1)
        for place, (_, _, _, inner) in enumerate(fields):
            self.nodes[first + place].parts = 1
            if inner:
                self._build(first + place, inner)
            if node.kind == STRUCT:
                node.parts += self.nodes[first + place].parts

    # Columns.

    cdef void* _grown(self, void* memory, Py_ssize_t size) noexcept nogil:
        """Of that size. If there is no more memory, it is as it was, and `failed` is set."""
        cdef void* found = realloc(memory, size)
        if found == NULL:
            self.failed = True
            return memory
        return found

    cdef bint _reserve(self, Node* node) noexcept nogil:
        """Room for one row more; False: there is none."""
        cdef int64_t capacity = node.capacity
        cdef int width
        if node.length < capacity:
            return True
        if self.failed or node.length >= ROWS_MAX:
            self.failed = True
            return False
        capacity = 1024 if capacity == 0 else min(2 * capacity, <int64_t>ROWS_MAX)
        node.validity = <uint8_t*>self._grown(node.validity, (capacity + 7) // 8)
        if node.kind == STRING or node.kind == BINARY or node.kind == LIST:
            node.offsets = <int32_t*>self._grown(node.offsets, (capacity + 1) * sizeof(int32_t))
            if node.length == 0 and not self.failed:
                node.offsets[0] = 0
        elif node.kind == BOOLEAN:
            node.data = <uint8_t*>self._grown(node.data, (capacity + 7) // 8)
        elif node.kind != STRUCT:
            width = 4 if node.kind == INT or node.kind == DATE else 8
            node.data = <uint8_t*>self._grown(node.data, capacity * width)
        if self.failed:
            return False
        node.capacity = capacity
        return True

    cdef bint _reserve_text(self, Node* node, Py_ssize_t length) noexcept nogil:
        """Room for so many bytes more, and for one row."""
        cdef int64_t wanted
        if not self._reserve(node):
            return False
        wanted = node.offsets[node.length] + <int64_t>length
        if wanted <= node.data_capacity:
            return True
        if wanted > ROWS_MAX:
            self.failed = True
            return False
        wanted = min(wanted + wanted // 2 + 1024, <int64_t>ROWS_MAX)  # What offsets can say.
        node.data = <uint8_t*>self._grown(node.data, wanted)
        if self.failed:
            return False
        node.data_capacity = wanted
        return True

    cdef int _finish_row(self, Node* node, bint valid) noexcept nogil:
        cdef uint8_t bit = <uint8_t>(1 << (node.length & 7))
        cdef uint8_t* byte = &node.validity[node.length >> 3]
        if self.checking:
            return FITS
        byte[0] = byte[0] | bit if valid else byte[0] & ~bit
        node.nulls += not valid
        node.length += 1
        return FITS

    cdef void _append_null(self, Node* node) noexcept nogil:
        self.parts -= node.parts
        if not self.checking:
            self._write_null(node)

    cdef void _write_null(self, Node* node) noexcept nogil:
        cdef int place
        if not self._reserve(node):
            return
        if node.kind == STRING or node.kind == BINARY or node.kind == LIST:
            node.offsets[node.length + 1] = node.offsets[node.length]
        elif node.kind == INT or node.kind == DATE:
            (<int32_t*>node.data)[node.length] = 0
        elif node.kind == BOOLEAN:
            node.data[node.length >> 3] &= <uint8_t>~(1 << (node.length & 7))
        elif node.kind == STRUCT:
            for place in range(node.count):
                self._write_null(&self.nodes[node.first + place])
        else:
            (<int64_t*>node.data)[node.length] = 0
        self._finish_row(node, False)

    cdef void _cut(self, Node* node, int64_t length) noexcept nogil:
        """Take the rows from `length` on away again."""
        cdef int place
        if node.length <= length:
            return
        if node.kind == LIST:
            self._cut(&self.nodes[node.first], node.offsets[length])
        elif node.kind == STRUCT:
            for place in range(node.count):
                self._cut(&self.nodes[node.first + place], length)
        while node.length > length:
            node.length -= 1
            node.nulls -= not node.validity[node.length >> 3] >> (node.length & 7) & 1

    # JSON.

    cdef const uint8_t* _skip_value(self, const uint8_t* at, const uint8_t* end) noexcept nogil:
        """at: at its first byte. Returns the place after it; NULL: it is no JSON."""
        cdef Py_ssize_t depth = 0
        cdef bint opened = False, closed
        if at[0] != 123 and at[0] != 91:
            return skip_scalar(at, end, self.limit)
        while True:
            closed = False
            at = skip_space(at, end)
            if at == end:
                return NULL
            if opened:
                closed = at[0] == self.levels[depth - 1]
                if closed:
                    at += 1
                    depth -= 1
                elif self.levels[depth - 1] == 125:
                    at = self._skip_key(at, end)
                    if at == NULL or at == end:
                        return NULL
            if not closed:
                if at[0] == 123 or at[0] == 91:
                    if depth == self.levels_capacity:
                        self.levels = <uint8_t*>self._grown(self.levels, 2 * depth + 64)
                        if self.failed:
                            return NULL
                        self.levels_capacity = 2 * depth + 64
                    self.levels[depth] = at[0] + 2
                    depth += 1
                    at += 1
                    opened = True
                    continue
                at = skip_scalar(at, end, self.limit)
                if at == NULL:
                    return NULL
            if depth == 0:
                return at
            at = skip_space(at, end)
            if at == end:
                return NULL
            if at[0] == 44:
                at += 1
            elif at[0] != self.levels[depth - 1]:
                return NULL
            opened = True

    cdef const uint8_t* _skip_key(self, const uint8_t* at, const uint8_t* end) noexcept nogil:
        """Returns the first byte of its value; NULL: it is no JSON."""
        cdef bint escaped = False
        if at[0] != 34:
            return NULL
        at = string_end(at + 1, end, self.limit, &escaped)
        if at == NULL:
            return NULL
        at = skip_space(at + 1, end)
        if at == end or at[0] != 58:
            return NULL
        return skip_space(at + 1, end)

    cdef const uint8_t* _find(self, Node* node, const uint8_t* at, const uint8_t* end) noexcept nogil:
        """Note what an object has for the fields of a struct. at: at its bracket. Returns the
        place after it; NULL: it is no JSON."""
        cdef const uint8_t* start
        cdef Key* key
        cdef Node* field
        cdef Guess* guess
        cdef int place = -1
        while node.found != NULL:
            node.found.start = NULL
            node.found = node.found.next_found
        at += 1
        while True:
            at = skip_space(at, end)
            if at == end:
                return NULL
            if at[0] == 125:
                return at + 1
            place += 1
            guess = &node.guesses[place] if place < GUESSES else NULL
            if guess != NULL and guess.length and is_here(at, end, guess.text, guess.length):
                at += guess.length
                key = guess.key
            else:
                start = at
                at = self._find_key(node, at, end, &key)
                if at == NULL:
                    return NULL
                if guess != NULL and at - start <= GUESS_MAX:
                    memcpy(guess.text, start, at - start)
                    guess.length, guess.key = <int>(at - start), key
            start = skip_space(at, end)
            if start == end:
                return NULL
            at = self._skip_value(start, end)
            if at == NULL:
                return NULL
            if key != NULL:
                field = &self.nodes[key.field]
                if field.start == NULL:
                    field.next_found, node.found = node.found, field
                if field.start == NULL or key.rank < field.rank:  # The first of each counts.
                    field.start, field.stop, field.rank = start, at, key.rank
            at = skip_space(at, end)
            if at == end:
                return NULL
            if at[0] == 44:
                at += 1
            elif at[0] != 125:
                return NULL

    cdef const uint8_t* _find_key(
        self, Node* node, const uint8_t* at, const uint8_t* end, Key** key
    ) noexcept nogil:
        """at: at its quote. Returns the place after the colon; NULL: it is no JSON. key: NULL: the
        struct has no such field."""
        cdef const uint8_t* name = at + 1
        cdef bint escaped = False
        cdef uint8_t text[NAME_MAX * 6]
        if at[0] != 34:
            return NULL
        at = string_end(name, end, self.limit, &escaped)
        if at == NULL:
            return NULL
        key[0] = NULL
        if not escaped:
            key[0] = key_of(node, name, at - name)
        elif at - name <= NAME_MAX * 6:
            key[0] = key_of(node, text, unescaped(name, at, text))
        at = skip_space(at + 1, end)
        return at + 1 if at != end and at[0] == 58 else NULL

    # What is made of it.

    cdef int _append(self, Node* node, const uint8_t* at, const uint8_t* end) noexcept nogil:
        """A value of JSON that was skipped. Returns FITS, NULL_VALUE or MISFIT."""
        cdef int64_t whole = 0
        cdef double number = 0
        cdef int finite
        if at[0] == 110:
            self._append_null(node)
            return NULL_VALUE
        if node.kind == STRUCT or node.kind == LIST:
            self.parts -= 1
            if node.kind == STRUCT:
                return self._append_struct(node, at, end)
            return self._append_list(node, at, end)
        if node.kind == INT or node.kind == BIGINT:
            if to_integer(at, end, &whole):
                return self._put_integer(node, whole)
        elif node.kind == DOUBLE:
            if at[0] == 45 or 48 <= at[0] <= 57:
                finite = is_finite(at, end) if self.checking else -1
                if finite == 1 or (finite < 0 and to_double(at, end, &number)):
                    return self._put_double(node, number)
        elif node.kind == BOOLEAN:
            if at[0] == 116 or at[0] == 102:
                return self._put_boolean(node, at[0] == 116)
        elif at[0] == 34:
            return self._append_text(node, at + 1, end - 1)
        self.parts -= 1
        return MISFIT

    cdef int _append_text(self, Node* node, const uint8_t* at, const uint8_t* end) noexcept nogil:
        """What stands between quotes in JSON."""
        cdef Py_ssize_t length = end - at
        cdef uint8_t* into
        cdef int64_t found = 0
        if node.kind == STRING or node.kind == BINARY:
            self.parts -= 1
            if node.kind == STRING and self.checking:
                return FITS
            if not self._reserve_text(node, length):
                return MISFIT
            into = node.data + node.offsets[node.length]
            length = unescaped(at, end, into)
            if node.kind == BINARY:
                length = from_base64(into, length, into)
                if length < 0:
                    return MISFIT
            node.offsets[node.length + 1] = node.offsets[node.length] + <int32_t>length
            return self._finish_row(node, True)
        if memchr(at, 92, length) != NULL:
            if length > self.scratch_capacity:
                self.scratch = <uint8_t*>self._grown(self.scratch, length)
                if self.failed:
                    return MISFIT
                self.scratch_capacity = length
            length = unescaped(at, end, self.scratch)
            at = self.scratch
        if to_time(at, length, &found) if node.kind == TIMESTAMP else to_date(at, length, &found):
            return self._put_moment(node, found)
        self.parts -= 1
        return MISFIT

    # Values, whatever form they had. Each counts as a part.

    cdef int _put_integer(self, Node* node, int64_t whole) noexcept nogil:
        if node.kind == DOUBLE:
            return self._put_double(node, <double>whole)
        self.parts -= 1
        if node.kind == INT:
            if not -0x80000000 <= whole <= 0x7FFFFFFF or not self._reserve(node):
                return MISFIT
            (<int32_t*>node.data)[node.length] = <int32_t>whole
        elif node.kind == BIGINT and self._reserve(node):
            (<int64_t*>node.data)[node.length] = whole
        else:
            return MISFIT
        return self._finish_row(node, True)

    cdef int _put_double(self, Node* node, double number) noexcept nogil:
        self.parts -= 1
        if node.kind != DOUBLE or not self._reserve(node):
            return MISFIT
        (<double*>node.data)[node.length] = number
        return self._finish_row(node, True)

    cdef int _put_boolean(self, Node* node, bint is_true) noexcept nogil:
        cdef uint8_t bit = <uint8_t>(1 << (node.length & 7))
        self.parts -= 1
        if node.kind != BOOLEAN or not self._reserve(node):
            return MISFIT
        node.data[node.length >> 3] &= <uint8_t>~bit
        if is_true:
            node.data[node.length >> 3] |= bit
        return self._finish_row(node, True)

    cdef int _put_moment(self, Node* node, int64_t found) noexcept nogil:
        """Microseconds or days since 1970, as the column has them."""
        cdef int64_t unit = <int64_t>86_400_000_000 if node.kind == TIMESTAMP else 1
        self.parts -= 1
        if not DAY_MIN * unit <= found <= DAY_MAX * unit or not self._reserve(node):
            return MISFIT
        if node.kind == TIMESTAMP:
            (<int64_t*>node.data)[node.length] = found
        else:
            (<int32_t*>node.data)[node.length] = <int32_t>found
        return self._finish_row(node, True)

    cdef int _put_bytes(self, Node* node, const uint8_t* at, Py_ssize_t length) noexcept nogil:
        """As they are; those of text are UTF-8."""
        self.parts -= 1
        if node.kind != BINARY and (node.kind != STRING or not is_utf8(at, at + length)):
            return MISFIT
        if self.checking:
            return FITS
        if not self._reserve_text(node, length):
            return MISFIT
        if length:
            memcpy(node.data + node.offsets[node.length], at, length)
        node.offsets[node.length + 1] = node.offsets[node.length] + <int32_t>length
        return self._finish_row(node, True)

    # What holds other values, in JSON.

    cdef int _append_list(self, Node* node, const uint8_t* at, const uint8_t* end) noexcept nogil:
        cdef Node* element = &self.nodes[node.first]
        cdef int64_t length = element.length
        cdef const uint8_t* start
        if at[0] != 91 or not self._reserve(node):
            return MISFIT
        at = skip_space(at + 1, end)
        while at[0] != 93:
            start = at
            at = self._skip_value(start, end)
            if at == NULL or self._append(element, start, at) == MISFIT or self.parts < 0:
                self._cut(element, length)
                return MISFIT
            at = skip_space(at, end)
            if at[0] == 44:
                at = skip_space(at + 1, end)
        node.offsets[node.length + 1] = <int32_t>element.length
        self._finish_row(node, True)
        return FITS

    cdef int _append_struct(self, Node* node, const uint8_t* at, const uint8_t* end) noexcept nogil:
        cdef int place, found
        if at[0] != 123 or not self._reserve(node) or self._find(node, at, end) == NULL:
            return MISFIT
        if self.checking:
            return FITS if self._found_fit(node, 0) else MISFIT
        for place in range(node.count):
            found = self._append_field(&self.nodes[node.first + place])
            if found == MISFIT or (found == NULL_VALUE and self.nodes[node.first + place].required):
                for place in range(node.count):
                    self._cut(&self.nodes[node.first + place], node.length)
                return MISFIT
        self._finish_row(node, True)
        return FITS

    cdef bint _found_fit(self, Node* node, int64_t parts) noexcept nogil:
        """Whether what an object has fits, and nothing is missing: with no look at other fields.
        parts: how many values may be made for each field; 0: all count together."""
        cdef Node* field = node.found
        cdef int needed = node.needed, outcome
        if parts == 0:
            self.parts -= node.parts - 1
        while field != NULL:
            if parts:
                self.parts = parts
            else:
                self.parts += field.parts
            outcome = self._append(field, field.start, field.stop)
            if outcome == MISFIT or self.parts < 0 and parts:
                return False
            needed -= field.required and outcome == FITS
            field = field.next_found
        return needed == 0

    cdef inline int _append_field(self, Node* field) noexcept nogil:
        if field.start != NULL:
            return self._append(field, field.start, field.stop)
        self._append_null(field)
        return NULL_VALUE

    # Records.

    cdef int _append_record(self, const uint8_t* at, const uint8_t* end) noexcept nogil:
        """Returns the number of its first error; 0: none."""
        if self.format == AVRO:
            return avro_record(self, at, end)
        if self.format == PROTOBUF:
            return protobuf_record(self, at, end)
        if self.format == ARROW:
            return arrow_record(self, at, end)
        return self._append_json(at, end)

    cdef int _append_json(self, const uint8_t* at, const uint8_t* end) noexcept nogil:
        cdef Node* top = &self.nodes[0]
        cdef Node* field
        cdef const uint8_t* found
        cdef int place, error = 0
        cdef int64_t parts = PARTS_MIN + PARTS_PER_BYTE * <int64_t>(end - at)
        at = skip_space(at, end)
        if at == end:
            error = NOT_JSON
        else:
            if at[0] == 123:
                found = self._find(top, at, end)
            else:
                found = self._skip_value(at, end)
                error = NO_OBJECT
            if found == NULL or skip_space(found, end) != end:
                error = NOT_JSON
        if self.checking and (error or self._found_fit(top, parts)):
            return error
        if error:
            return self._nothing_fits(error)
        for place in range(top.count):
            field = &self.nodes[top.first + place]
            self.parts = parts
            error = self._settled(place, self._append_field(field), error)
        return error

    cdef int _settled(self, int place, int outcome, int error) noexcept nogil:
        """A column of a record has its row then. error: of the columns before; returns the first
        one with that of this column."""
        cdef Node* top = &self.nodes[0]
        cdef Node* field = &self.nodes[top.first + place]
        cdef int own = 0
        if self.parts < 0:
            self._cut(field, top.length)
            outcome = MISFIT
        if outcome == MISFIT:
            self._append_null(field)
            own = FIRST_FIELD + 2 * place + 1
        elif outcome == NULL_VALUE and field.required:
            own = FIRST_FIELD + 2 * place
        return own if own and (error == 0 or own < error) else error

    cdef int _nothing_fits(self, int error) noexcept nogil:
        """A record that is null in each column."""
        cdef Node* top = &self.nodes[0]
        cdef int place
        for place in range(top.count):
            self._cut(&self.nodes[top.first + place], top.length)
            self._append_null(&self.nodes[top.first + place])
        return error

    cdef Py_ssize_t _add(
        self, const int32_t* offsets, const uint8_t* data, Py_ssize_t length,
        const uint8_t* validity, Py_ssize_t start, Py_ssize_t stop, int* first_error
    ) noexcept nogil:
        """WRONG: an offset is. If only checking, the first row that does not fit, and its error;
        ALL_FIT: there is none."""
        cdef Py_ssize_t row
        cdef int place, error
        cdef Node* top = &self.nodes[0]
        for row in range(start, stop):
            if offsets[row] < 0 or offsets[row] > offsets[row + 1] or offsets[row + 1] > length:
                return WRONG
            if self.checking:
                if validity == NULL or validity[row >> 3] >> (row & 7) & 1:
                    first_error[0] = self._append_record(
                        data + offsets[row], data + offsets[row + 1]
                    )
                    if first_error[0] or self.failed:
                        return row
                continue
            if top.length >= self.errors_capacity:
                self.errors = <int32_t*>self._grown(
                    self.errors, (2 * top.length + 1024) * sizeof(int32_t)
                )
                if self.failed:
                    return ALL_FIT
                self.errors_capacity = 2 * top.length + 1024
            if validity != NULL and not validity[row >> 3] >> (row & 7) & 1:
                error = 0
                for place in range(top.count):
                    self._append_null(&self.nodes[top.first + place])
            else:
                error = self._append_record(data + offsets[row], data + offsets[row + 1])
            self.errors[top.length] = error
            self.misfits += error != 0
            top.length += 1
            if self.failed:
                return ALL_FIT
        return ALL_FIT

    def add(
        self, offsets, Py_ssize_t offsets_at, data, Py_ssize_t data_at, Py_ssize_t data_length,
        validity, Py_ssize_t validity_at, Py_ssize_t start, Py_ssize_t stop
    ):
        """The rows [start, stop) of a column of values: 32-bit offsets, data, and bits that are 0
        for null, each in a buffer, from a place on. validity: None if none is null. Raises
        ValueError for offsets that are wrong; MemoryError, and then all rows are gone that were not
        taken."""
        self._take_rows(
            False, offsets, offsets_at, data, data_at, data_length, validity, validity_at, start,
            stop,
        )

    def check(
        self, offsets, Py_ssize_t offsets_at, data, Py_ssize_t data_at, Py_ssize_t data_length,
        validity, Py_ssize_t validity_at, Py_ssize_t start, Py_ssize_t stop
    ):
        """The first of such rows that does not fit, and the number of its error; -1: all do. Not
        between `add` and `take`."""
        if self.nodes[0].length:
            raise ValueError("there are rows that were not taken")
        return self._take_rows(
            True, offsets, offsets_at, data, data_at, data_length, validity, validity_at, start,
            stop,
        )

    cdef _take_rows(
        self, bint checking, offsets, Py_ssize_t offsets_at, data, Py_ssize_t data_at,
        Py_ssize_t data_length, validity, Py_ssize_t validity_at, Py_ssize_t start, Py_ssize_t stop
    ):
        cdef Py_buffer of_offsets, of_data, of_validity
        cdef const int32_t* rows
        cdef const uint8_t* text
        cdef const uint8_t* bits = NULL
        cdef Py_ssize_t found = ALL_FIT
        cdef int error = 0
        PyObject_GetBuffer(offsets, &of_offsets, PyBUF_SIMPLE)
        PyObject_GetBuffer(data, &of_data, PyBUF_SIMPLE)
        PyObject_GetBuffer(b"" if validity is None else validity, &of_validity, PyBUF_SIMPLE)
        try:
            if (
                not 0 <= start <= stop <= ROWS_MAX
                or min(offsets_at, data_at, data_length, validity_at) < 0
                or offsets_at + 4 * (stop + 1) > of_offsets.len
                or data_at + data_length > of_data.len
                or (validity is not None and validity_at + (stop + 7) // 8 > of_validity.len)
            ):
                raise ValueError("the column does not lie within the buffer")
            if validity is not None:
                bits = <const uint8_t*>of_validity.buf + validity_at
            self.limit = <const uint8_t*>of_data.buf + of_data.len
            self.checking = checking
            rows = <const int32_t*>(<const uint8_t*>of_offsets.buf + offsets_at)
            text = <const uint8_t*>of_data.buf + data_at
            if data_length < SHORT:
                found = self._add(rows, text, data_length, bits, start, stop, &error)
            else:
                with nogil:
                    found = self._add(rows, text, data_length, bits, start, stop, &error)
            if self.failed:
                self._begin_anew()
                raise MemoryError("the columns are too large")
            if found == WRONG:
                raise ValueError("the offsets of a column fall")
            return found, error
        finally:
            PyBuffer_Release(&of_offsets)
            PyBuffer_Release(&of_data)
            PyBuffer_Release(&of_validity)

    cdef void _begin_anew(self) noexcept:
        """Forget the rows that were not taken: some have only a part of their columns."""
        cdef int place
        for place in range(self.node_count):
            self.nodes[place].length = self.nodes[place].nulls = 0
        self.misfits = 0
        self.failed = False

    def take(self):
        """(rows, errors, columns), and begin anew. errors: the number of each record's first error
        as 32 bits; None: there is none. A column is (rows, nulls, buffers, columns within it)."""
        cdef Node* top = &self.nodes[0]
        cdef int64_t rows = top.length
        errors = None
        if self.misfits:
            errors = block_of(self.errors, rows * sizeof(int32_t))
            self.errors, self.errors_capacity = NULL, 0
        columns = [self._taken(&self.nodes[top.first + place]) for place in range(top.count)]
        top.length = self.misfits = 0
        return rows, errors, columns

    cdef _taken(self, Node* node):
        cdef int64_t length = node.length
        cdef int64_t size
        buffers = [block_of(node.validity, (length + 7) // 8) if node.nulls else None]
        if not node.nulls:
            free(node.validity)
        if node.kind == STRING or node.kind == BINARY or node.kind == LIST:
            size = node.offsets[length] if node.offsets != NULL else 0
            if node.offsets == NULL:
                buffers.append(bytes(4))
            else:
                buffers.append(block_of(node.offsets, (length + 1) * sizeof(int32_t)))
            if node.kind != LIST:
                buffers.append(block_of(node.data, size))
        elif node.kind == BOOLEAN:
            buffers.append(block_of(node.data, (length + 7) // 8))
        elif node.kind != STRUCT:
            size = length * (4 if node.kind == INT or node.kind == DATE else 8)
            buffers.append(block_of(node.data, size))
        found = length, node.nulls, buffers, [
            self._taken(&self.nodes[node.first + place]) for place in range(node.count)
        ]
        node.validity = node.data = NULL
        node.offsets = NULL
        node.length = node.nulls = node.capacity = node.data_capacity = 0
        return found


cdef int _count(fields) except -1:
    """The fields, with those within."""
    cdef int found = 0
    for _, _, _, inner in fields:
        found += 1 + _count(inner)
    return found


include "_typed_layouts.pxi"
include "_typed_arrow.pxi"
