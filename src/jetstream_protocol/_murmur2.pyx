# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: binding=False, always_allow_keywords=False
"""MurmurHash2 with Kafka's seed: the compiled twin of partitioner.pure_murmur2."""

from cpython.bytes cimport PyBytes_AsString, PyBytes_Size
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport getenv
from libc.string cimport strcmp

if getenv("JETSTREAM_PURE") != NULL and strcmp(getenv("JETSTREAM_PURE"), "0") != 0:
    raise ImportError("JETSTREAM_PURE is set")


def murmur2(bytes key not None):
    """The hash of the key, a number of 32 bits."""
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AsString(key)
    cdef Py_ssize_t length = PyBytes_Size(key)
    cdef uint32_t multiplier = 0x5BD1E995U
    cdef uint32_t state = 0x9747B28CU ^ <uint32_t>length
    cdef uint32_t mixed
    cdef Py_ssize_t at = 0
    while at + 4 <= length:
        mixed = (
            <uint32_t>data[at]
            | <uint32_t>data[at + 1] << 8
            | <uint32_t>data[at + 2] << 16
            | <uint32_t>data[at + 3] << 24
        )
        mixed *= multiplier
        mixed ^= mixed >> 24
        mixed *= multiplier
        state *= multiplier
        state ^= mixed
        at += 4
    if at < length:
        mixed = data[at]
        if at + 1 < length:
            mixed |= <uint32_t>data[at + 1] << 8
        if at + 2 < length:
            mixed |= <uint32_t>data[at + 2] << 16
        state ^= mixed
        state *= multiplier
    state ^= state >> 13
    state *= multiplier
    state ^= state >> 15
    return state
