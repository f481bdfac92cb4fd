/* Ten functions of SparrowMQ over bytes, in C: seven of the broker, three of its clients.
 *
 * Each does what its twin in Python does, to the byte, and says what the twin is for it; the package
 * `sparrowmq` has them all and needs none of these (src/sparrowmq/protocol/speedups.py, which also says
 * what the arguments are). Whatever is not the usual form of the input is answered with None: the
 * twin takes it then. So nothing here decides what is refused, and nothing here reads beyond a
 * buffer, whatever is in it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SEPARATOR 2
#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu
#define HEAD_SIZE 88
#define RECORD_SIZE_MIN 92
#define CRC_PROPERTY_SIZE 20
#define ENTRY_SIZE 20
#define INDEX_ENTRY_SIZE 20

typedef const unsigned char *Bytes;

static PyObject *fail(PyObject *kind, const char *text) {
    PyErr_SetString(kind, text);
    return NULL;
}

/* --- numbers, big-endian ------------------------------------------------------------------- */

static uint32_t read32(Bytes at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint64_t read64(Bytes at) { return (uint64_t)read32(at) << 32 | read32(at + 4); }

static void write32(unsigned char *at, uint32_t value) {
    at[0] = (unsigned char)(value >> 24);
    at[1] = (unsigned char)(value >> 16);
    at[2] = (unsigned char)(value >> 8);
    at[3] = (unsigned char)value;
}

static void write64(unsigned char *at, uint64_t value) {
    write32(at, (uint32_t)(value >> 32));
    write32(at + 4, (uint32_t)value);
}

/* --- CRC-32, eight bytes a step (as zlib's) ------------------------------------------------ */

static uint32_t crc_table[8][256];

static void fill_crc_table(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t c = n;
        for (int bit = 0; bit < 8; bit++) {
            c = c & 1 ? c >> 1 ^ 0xEDB88320u : c >> 1;
        }
        crc_table[0][n] = c;
    }
    for (uint32_t n = 0; n < 256; n++) {
        for (int k = 1; k < 8; k++) {
            uint32_t c = crc_table[k - 1][n];
            crc_table[k][n] = crc_table[0][c & 0xFF] ^ c >> 8;
        }
    }
}

static uint32_t crc32_of(Bytes at, size_t size) {
    uint32_t c = 0xFFFFFFFFu;
    for (; size >= 8; at += 8, size -= 8) {
        uint32_t low = c ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        c = crc_table[7][low & 0xFF] ^ crc_table[6][low >> 8 & 0xFF] ^ crc_table[5][low >> 16 & 0xFF] ^
            crc_table[4][low >> 24] ^ crc_table[3][at[4]] ^ crc_table[2][at[5]] ^ crc_table[1][at[6]] ^
            crc_table[0][at[7]];
    }
    for (; size > 0; at++, size--) {
        c = crc_table[0][(c ^ *at) & 0xFF] ^ c >> 8;
    }
    return c ^ 0xFFFFFFFFu;
}

/* --- properties ---------------------------------------------------------------------------- */

/* Whether the name that ends before `mark` ends with `name`. */
static int ends_with(Bytes begin, Bytes mark, const char *name, size_t size) {
    return (size_t)(mark - begin) >= size && memcmp(mark - size, name, size) == 0;
}

/* Whether a property of this name begins there: first of all, or behind a separator. */
static int is_property(Bytes begin, Bytes mark, const char *name, size_t size) {
    return ends_with(begin, mark, name, size) &&
           ((size_t)(mark - begin) == size || mark[-(ptrdiff_t)size - 1] == SEPARATOR);
}

static int is_ascii(Bytes at, Bytes end) {
    uint64_t all = 0, eight;
    for (; end - at >= 8; at += 8) {
        memcpy(&eight, at, 8);
        all |= eight;
    }
    while (at < end) {
        all |= *at++;
    }
    return (all & 0x8080808080808080u) == 0;
}

/* Java's String.hashCode of ASCII, going on from `hash`. */
static uint32_t hash_on(uint32_t hash, Bytes at, Bytes end) {
    while (at < end) {
        hash = hash * 31 + *at++;
    }
    return hash;
}

/* --- the records of a batch ----------------------------------------------------------------- */

/* Finds the tag among properties: its hash goes to *code. Returns 0 if the twin must look. */
static int read_properties(Bytes begin, Bytes end, int32_t *code) {
    *code = 0;
    if (!is_ascii(begin, end)) {
        return 0;
    }
    for (Bytes at = begin; at < end; at++) {
        at = memchr(at, 1, (size_t)(end - at));
        if (at == NULL) {
            break;
        }
        if (ends_with(begin, at, "DELAY", 5) || ends_with(begin, at, "__CRC32#", 8) ||
            ends_with(begin, at, "TIMER_DELIVER_MS", 16) || ends_with(begin, at, "TIMER_DELAY_SEC", 15) ||
            ends_with(begin, at, "TIMER_DELAY_MS", 14)) {
            return 0;
        }
        if (is_property(begin, at, "TAGS", 4)) {
            Bytes value_end = memchr(at + 1, SEPARATOR, (size_t)(end - at - 1));
            if (value_end == NULL) {
                value_end = end;
            }
            if (value_end > at + 1) {
                *code = (int32_t)hash_on(0, at + 1, value_end);
            }
        }
    }
    return 1;
}

/* Writes the checksum of a record that ends before `out`, as its last property; returns the property's end. */
static unsigned char *write_crc(Bytes record, Bytes end, unsigned char *out) {
    uint32_t crc = crc32_of(record, (size_t)(end - record)) & 0x7FFFFFFF;
    memcpy(out, "__CRC32#\1", 9);
    out += 9;
    /* The lowest digit comes first. */
    for (int digit = 0; digit < 10; digit++, crc /= 10) {
        *out++ = (unsigned char)('0' + crc % 10);
    }
    *out++ = SEPARATOR;
    return out;
}

/* Writes a record's size and, behind its other properties, its checksum; returns its end. */
static unsigned char *end_record(unsigned char *record, unsigned char *out) {
    write32(record, (uint32_t)(out - record) + CRC_PROPERTY_SIZE);
    return write_crc(record, out, out);
}

static PyObject *encode_batch(PyObject *self, PyObject *args) {
    Bytes body, head, topic, added;
    Py_ssize_t body_size, head_size, topic_size, added_size, count_max, properties_max;
    long long position, queue_offset;
    if (!PyArg_ParseTuple(args, "y#y#y#y#LLnn", &body, &body_size, &head, &head_size, &topic, &topic_size, &added,
                          &added_size, &position, &queue_offset, &count_max, &properties_max)) {
        return NULL;
    }
    if (head_size < HEAD_SIZE || added_size < 1) {
        Py_RETURN_NONE;
    }
    Bytes end = body + body_size;
    Py_ssize_t count = 0;
    size_t total = 0;
    int32_t *tags = PyMem_Malloc(((size_t)body_size / 22 + 1) * sizeof *tags);
    PyObject *data = NULL, *entries = NULL, *positions = NULL, *codes = NULL, *result = NULL;
    if (tags == NULL) {
        return PyErr_NoMemory();
    }
    for (Bytes at = body; at < end; count++) {
        if (end - at < 22 || count == count_max) {
            goto unusual;
        }
        uint32_t size = read32(at), message_size = read32(at + 16);
        if (size < 22 || size > (size_t)(end - at) || message_size > size - 22) {
            goto unusual;
        }
        Bytes properties = at + 22 + message_size;
        size_t own = (size_t)properties[-2] << 8 | properties[-1];
        if (22 + (size_t)message_size + own != size || !read_properties(properties, at + size, &tags[count])) {
            goto unusual;
        }
        size_t text = own + (own && at[size - 1] != SEPARATOR) + (size_t)added_size;
        if (text > (size_t)properties_max) {
            goto unusual;
        }
        total += (size_t)head_size + message_size + (size_t)topic_size + 2 + text + CRC_PROPERTY_SIZE;
        at += size;
    }
    if (count == 0 || total > 0x7FFFFFFF) {
        goto unusual;
    }
    data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    entries = PyBytes_FromStringAndSize(NULL, count * ENTRY_SIZE);
    positions = PyTuple_New(count);
    codes = PySet_New(NULL);
    if (data == NULL || entries == NULL || positions == NULL || codes == NULL) {
        goto done;
    }
    unsigned char *out = (unsigned char *)PyBytes_AsString(data);
    unsigned char *entry = (unsigned char *)PyBytes_AsString(entries);
    Py_ssize_t n = 0;
    for (Bytes at = body; at < end; n++) {
        uint32_t size = read32(at), message_size = read32(at + 16);
        Bytes message = at + 20;
        size_t own = size - 22 - message_size;
        unsigned char *record = out;
        memcpy(out, head, (size_t)head_size);
        write32(record + 8, crc32_of(message, message_size) & 0x7FFFFFFF);
        memcpy(record + 16, at + 12, 4);
        write64(record + 20, (uint64_t)(queue_offset + n));
        write64(record + 28, (uint64_t)position);
        out += head_size;
        write32(out - 4, message_size);
        memcpy(out, message, message_size);
        out += message_size;
        memcpy(out, topic, (size_t)topic_size);
        out += topic_size;
        unsigned char *length = out;
        out += 2;
        memcpy(out, message + message_size + 2, own);
        out += own;
        if (own && out[-1] != SEPARATOR) {
            *out++ = SEPARATOR;
        }
        memcpy(out, added, (size_t)added_size);
        out += added_size;
        size_t text = (size_t)(out - length) - 2 + CRC_PROPERTY_SIZE;
        length[0] = (unsigned char)(text >> 8);
        length[1] = (unsigned char)text;
        out = end_record(record, out);
        uint32_t record_size = (uint32_t)(out - record);
        write64(entry, (uint64_t)position);
        write32(entry + 8, record_size);
        write64(entry + 12, (uint64_t)(int64_t)tags[n]);
        entry += ENTRY_SIZE;
        if (n == 0 || tags[n] != tags[n - 1]) {
            PyObject *number = PyLong_FromLong(tags[n]);
            if (number == NULL || PySet_Add(codes, number) < 0) {
                Py_XDECREF(number);
                goto done;
            }
            Py_DECREF(number);
        }
        PyObject *place = PyLong_FromLongLong(position);
        if (place == NULL || PyTuple_SetItem(positions, n, place) < 0) {
            goto done;
        }
        position += record_size;
        at += size;
    }
    result = PyTuple_Pack(4, data, entries, positions, codes);
    goto done;
unusual:
    result = Py_NewRef(Py_None);
done:
    PyMem_Free(tags);
    Py_XDECREF(data);
    Py_XDECREF(entries);
    Py_XDECREF(positions);
    Py_XDECREF(codes);
    return result;
}

/* --- the record of a message ---------------------------------------------------------------- */

/* Reads a number; returns 0 if it is not within the bounds. */
static int read_number(PyObject *object, long long low, long long high, long long *number) {
    int overflow;
    *number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (*number == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return !overflow && *number >= low && *number <= high;
}

static PyObject *encode_record(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    enum { BODY, PROPERTIES, TOPIC, BORN_HOST, STORE_HOST, NUMBERS };
    enum { QUEUE_ID, FLAG, QUEUE_OFFSET, POSITION, SYS_FLAG, BORN_MS, STORE_MS, TIMES, PROPERTIES_MAX, COUNT };
    char *parts[NUMBERS];
    Py_ssize_t sizes[NUMBERS];
    long long numbers[COUNT];
    int32_t code;
    if (count != NUMBERS + COUNT) {
        return fail(PyExc_TypeError, "encode_record takes 14 arguments");
    }
    for (int n = 0; n < NUMBERS; n++) {
        if (n == PROPERTIES) {
            parts[n] = (char *)PyUnicode_AsUTF8AndSize(args[n], &sizes[n]);
            if (parts[n] == NULL) {
                PyErr_Clear();
                Py_RETURN_NONE;
            }
        } else if (PyBytes_AsStringAndSize(args[n], &parts[n], &sizes[n]) < 0) {
            return NULL;
        }
    }
    for (int n = 0; n < COUNT; n++) {
        int is_long = n == QUEUE_OFFSET || n == POSITION || n == BORN_MS || n == STORE_MS;
        if (!read_number(args[NUMBERS + n], is_long ? INT64_MIN : INT32_MIN, is_long ? INT64_MAX : INT32_MAX,
                         &numbers[n])) {
            Py_RETURN_NONE;
        }
    }
    Bytes properties = (Bytes)parts[PROPERTIES];
    size_t own = (size_t)sizes[PROPERTIES];
    if (sizes[BORN_HOST] != 8 || sizes[STORE_HOST] != 8 || own == 0 || (long long)own > numbers[PROPERTIES_MAX] ||
        sizes[BODY] > INT32_MAX / 2 || sizes[TOPIC] > 256 || !read_properties(properties, properties + own, &code)) {
        Py_RETURN_NONE;
    }
    size_t text = own + (properties[own - 1] != SEPARATOR) + CRC_PROPERTY_SIZE;
    if (text > 0x7FFF) {
        Py_RETURN_NONE;
    }
    Py_ssize_t total = HEAD_SIZE + sizes[BODY] + sizes[TOPIC] + 2 + (Py_ssize_t)text;
    PyObject *data = PyBytes_FromStringAndSize(NULL, total);
    if (data == NULL) {
        return NULL;
    }
    unsigned char *record = (unsigned char *)PyBytes_AsString(data), *out = record + HEAD_SIZE;
    write32(record + 4, MAGIC_V1);
    write32(record + 8, crc32_of((Bytes)parts[BODY], (size_t)sizes[BODY]) & 0x7FFFFFFF);
    write32(record + 12, (uint32_t)numbers[QUEUE_ID]);
    write32(record + 16, (uint32_t)numbers[FLAG]);
    write64(record + 20, (uint64_t)numbers[QUEUE_OFFSET]);
    write64(record + 28, (uint64_t)numbers[POSITION]);
    /* Without the bits of hosts of IPv6. */
    write32(record + 36, (uint32_t)numbers[SYS_FLAG] & ~0x30u);
    write64(record + 40, (uint64_t)numbers[BORN_MS]);
    memcpy(record + 48, parts[BORN_HOST], 8);
    write64(record + 56, (uint64_t)numbers[STORE_MS]);
    memcpy(record + 64, parts[STORE_HOST], 8);
    write32(record + 72, (uint32_t)numbers[TIMES]);
    write64(record + 76, 0);
    write32(record + 84, (uint32_t)sizes[BODY]);
    memcpy(out, parts[BODY], (size_t)sizes[BODY]);
    out += sizes[BODY];
    memcpy(out, parts[TOPIC], (size_t)sizes[TOPIC]);
    out += sizes[TOPIC];
    *out++ = (unsigned char)(text >> 8);
    *out++ = (unsigned char)text;
    memcpy(out, properties, own);
    out += own;
    if (out[-1] != SEPARATOR) {
        *out++ = SEPARATOR;
    }
    end_record(record, out);
    return Py_BuildValue("Ni", data, (int)code);
}

/* --- the index ------------------------------------------------------------------------------ */

/* Keys of records, each as the hash that the index wants, its record's position and its store time. */
typedef struct {
    int32_t *hashes;
    int64_t *positions, *times;
    size_t count, room;
} Keys;

static void free_keys(Keys *keys) {
    PyMem_Free(keys->hashes);
    PyMem_Free(keys->positions);
    PyMem_Free(keys->times);
}

/* Makes room for one more key. */
static int make_room(Keys *keys) {
    if (keys->count < keys->room) {
        return 0;
    }
    size_t room = keys->room ? 2 * keys->room : 1024;
    int32_t *hashes = PyMem_Realloc(keys->hashes, room * sizeof *hashes);
    keys->hashes = hashes == NULL ? keys->hashes : hashes;
    int64_t *positions = PyMem_Realloc(keys->positions, room * sizeof *positions);
    keys->positions = positions == NULL ? keys->positions : positions;
    int64_t *times = PyMem_Realloc(keys->times, room * sizeof *times);
    keys->times = times == NULL ? keys->times : times;
    if (hashes == NULL || positions == NULL || times == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    keys->room = room;
    return 0;
}

/* A value among properties; `end` is NULL without any. */
typedef struct {
    Bytes at, end;
} Value;

/* Finds the values of the last UNIQ_KEY and the last KEYS that have one. */
static void find_values(Bytes begin, Bytes end, Value *unique, Value *keys) {
    unique->end = keys->end = NULL;
    for (Bytes at = begin; at < end; at++) {
        at = memchr(at, 1, (size_t)(end - at));
        if (at == NULL) {
            return;
        }
        Value *found = is_property(begin, at, "UNIQ_KEY", 8) ? unique : is_property(begin, at, "KEYS", 4) ? keys : NULL;
        if (found != NULL) {
            Bytes stop = memchr(at + 1, SEPARATOR, (size_t)(end - at - 1));
            if (stop != at + 1) {
                found->at = at + 1;
                found->end = stop == NULL ? end : stop;
            }
        }
    }
}

/* Adds each of the blank-separated keys of a value. */
static int add_keys(Keys *keys, uint32_t topic_hash, Value value, long long position, long long time) {
    for (Bytes at = value.at; value.end != NULL && at < value.end;) {
        Bytes stop = memchr(at, ' ', (size_t)(value.end - at));
        if (stop == NULL) {
            stop = value.end;
        }
        if (stop > at) {
            uint32_t hash = hash_on(topic_hash, at, stop);
            if (hash >= 0x80000000u) {
                hash = (0u - hash) & 0x7FFFFFFFu;
            }
            if (make_room(keys) < 0) {
                return -1;
            }
            keys->hashes[keys->count] = (int32_t)hash;
            keys->positions[keys->count] = position;
            keys->times[keys->count++] = time;
        }
        at = stop + 1;
    }
    return 0;
}

static PyObject *collect_keys(PyObject *self, PyObject *args) {
    Bytes chunk;
    Py_ssize_t chunk_size;
    long long position;
    if (!PyArg_ParseTuple(args, "y#L", &chunk, &chunk_size, &position)) {
        return NULL;
    }
    Keys keys = {NULL, NULL, NULL, 0, 0};
    PyObject *result = NULL;
    Bytes at = chunk, end = chunk + chunk_size;
    if (make_room(&keys) < 0) {
        goto done;
    }
    while (end - at >= HEAD_SIZE) {
        uint32_t size = read32(at), magic = read32(at + 4), sys_flag = read32(at + 36);
        if (size > (size_t)(end - at) || (magic != MAGIC_V1 && magic != MAGIC_V2)) {
            break;
        }
        size_t born = sys_flag & 0x10 ? 20 : 8, store = sys_flag & 0x20 ? 20 : 8;
        size_t head_size = HEAD_SIZE - 16 + born + store, length_size = magic == MAGIC_V1 ? 1 : 2;
        if (size < head_size + length_size + 2) {
            /* Records as damaged as this are for the twin. */
            result = Py_NewRef(Py_None);
            goto done;
        }
        long long time = (long long)read64(at + 48 + born);
        uint32_t body_size = read32(at + head_size - 4);
        if (body_size > size - head_size - length_size - 2) {
            result = Py_NewRef(Py_None);
            goto done;
        }
        Bytes topic = at + head_size + body_size + length_size, record_end = at + size;
        size_t topic_size = length_size == 1 ? topic[-1] : (size_t)topic[-2] << 8 | topic[-1];
        if (topic_size + 2 > (size_t)(record_end - topic) || !is_ascii(topic, topic + topic_size) ||
            !is_ascii(topic + topic_size + 2, record_end)) {
            result = Py_NewRef(Py_None);
            goto done;
        }
        long long place = position + (at - chunk);
        /* A rollback is in no queue, and so not in the index. */
        if ((sys_flag & 0xC) != 0xC) {
            Value unique, others;
            uint32_t topic_hash = hash_on(0, topic, topic + topic_size) * 31 + '#';
            find_values(topic + topic_size + 2, record_end, &unique, &others);
            if (add_keys(&keys, topic_hash, unique, place, time) < 0 ||
                add_keys(&keys, topic_hash, others, place, time) < 0) {
                goto done;
            }
        }
        at = record_end;
    }
    result = Py_BuildValue("ny#y#y#", (Py_ssize_t)(at - chunk), (const char *)keys.hashes,
                           (Py_ssize_t)(keys.count * sizeof *keys.hashes), (const char *)keys.positions,
                           (Py_ssize_t)(keys.count * sizeof *keys.positions), (const char *)keys.times,
                           (Py_ssize_t)(keys.count * sizeof *keys.times));
done:
    free_keys(&keys);
    return result;
}

/* The seconds that an entry has: from `begin` to `time`, in milliseconds. */
static uint32_t seconds_between(long long begin, long long time) {
    if (begin <= 0 || time <= begin) {
        return 0;
    }
    long long seconds = (time - begin) / 1000;
    return seconds > INT32_MAX ? INT32_MAX : (uint32_t)seconds;
}

static PyObject *add_entries(PyObject *self, PyObject *args) {
    Py_buffer slots_of, pages_of, hashes_of, positions_of, times_of;
    long page_slots, number;
    long long begin_ms;
    if (!PyArg_ParseTuple(args, "w*w*ly*y*y*Ll", &slots_of, &pages_of, &page_slots, &hashes_of, &positions_of,
                          &times_of, &begin_ms, &number)) {
        return NULL;
    }
    int32_t *slots = slots_of.buf;
    unsigned char *pages = pages_of.buf;
    const int32_t *hashes = hashes_of.buf;
    const int64_t *positions = positions_of.buf, *times = times_of.buf;
    Py_ssize_t slot_count = slots_of.len / 4, count = hashes_of.len / 4;
    PyObject *data = NULL, *result = NULL;
    if (slot_count == 0 || page_slots < 1 || pages_of.len < (slot_count + page_slots - 1) / page_slots ||
        positions_of.len != count * 8 || times_of.len != count * 8) {
        PyErr_SetString(PyExc_ValueError, "arrays of different lengths, no slots, or too few pages");
        goto done;
    }
    data = PyBytes_FromStringAndSize(NULL, count * INDEX_ENTRY_SIZE);
    if (data == NULL) {
        goto done;
    }
    unsigned char *out = (unsigned char *)PyBytes_AsString(data);
    Py_ssize_t fresh = 0;
    for (Py_ssize_t n = 0; n < count; n++, out += INDEX_ENTRY_SIZE) {
        Py_ssize_t slot = (Py_ssize_t)((uint32_t)hashes[n] % (unsigned long long)slot_count);
        /* The first entry of a file counts from the end of the file before. */
        long long from = number == 1 && n > 0 ? times[0] : begin_ms;
        write32(out, (uint32_t)hashes[n]);
        write64(out + 4, (uint64_t)positions[n]);
        write32(out + 12, seconds_between(from, times[n]));
        write32(out + 16, (uint32_t)slots[slot]);
        fresh += slots[slot] == 0;
        slots[slot] = (int32_t)(number + n);
        pages[slot / page_slots] = 1;
    }
    result = Py_BuildValue("On", data, fresh);
done:
    PyBuffer_Release(&slots_of);
    PyBuffer_Release(&pages_of);
    PyBuffer_Release(&hashes_of);
    PyBuffer_Release(&positions_of);
    PyBuffer_Release(&times_of);
    Py_XDECREF(data);
    return result;
}

/* --- the records of the log ------------------------------------------------------------------- */

/* Makes a tuple of a type without attributes of its own, as those of NamedTuple are. */
static PyObject *make_tuple(PyTypeObject *type, PyObject *const *items, Py_ssize_t count) {
    PyObject *made = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, count);
    for (Py_ssize_t n = 0; n < count; n++) {
        if (items[n] == NULL) {
            Py_CLEAR(made);
        }
        if (made == NULL) {
            Py_XDECREF(items[n]);
        } else {
            PyTuple_SetItem(made, n, items[n]);
        }
    }
    return made;
}

static PyObject *check_records(PyObject *self, PyObject *args) {
    Bytes buffer;
    Py_ssize_t buffer_size, begin;
    long long position;
    PyObject *topics, *record_type, *records;
    if (!PyArg_ParseTuple(args, "y#nLO!O!O!", &buffer, &buffer_size, &begin, &position, &PyDict_Type, &topics,
                          &PyType_Type, &record_type, &PyList_Type, &records)) {
        return NULL;
    }
    if (begin < 0 || begin > buffer_size || !PyType_IsSubtype((PyTypeObject *)record_type, &PyTuple_Type)) {
        return fail(PyExc_ValueError, "check_records takes a place in the buffer and a type of tuples");
    }
    Bytes at = buffer + begin, end = buffer + buffer_size, topic = NULL;
    PyObject *topic_text = NULL;
    unsigned char crc[CRC_PROPERTY_SIZE];
    while (end - at >= RECORD_SIZE_MIN) {
        uint32_t size = read32(at), sys_flag = read32(at + 36), body_size = read32(at + 84);
        int32_t queue_id = (int32_t)read32(at + 12), code;
        long long queue_offset = (long long)read64(at + 20), place = position + (at - buffer - begin);
        if (size > (size_t)(end - at) || size < RECORD_SIZE_MIN || read32(at + 4) != MAGIC_V1 ||
            (long long)read64(at + 28) != place || (sys_flag & 0x30) || queue_id < 0 || queue_offset < 0 ||
            queue_offset > place / RECORD_SIZE_MIN || body_size > size - HEAD_SIZE - 3) {
            break;
        }
        Bytes body = at + HEAD_SIZE, topic_at = body + body_size, record_end = at + size;
        size_t topic_size = topic_at[0], rest = size - HEAD_SIZE - body_size;
        if (topic_size + 3 > rest) {
            break;
        }
        Bytes properties = topic_at + 1 + topic_size + 2, crc_at = record_end - CRC_PROPERTY_SIZE;
        size_t properties_size = (size_t)properties[-2] << 8 | properties[-1];
        if (topic_size + 3 + properties_size != rest || properties_size < CRC_PROPERTY_SIZE ||
            (crc_at != properties && crc_at[-1] != SEPARATOR) ||
            (body_size && (crc32_of(body, body_size) & 0x7FFFFFFF) != read32(at + 8))) {
            break;
        }
        write_crc(at, crc_at, crc);
        if (memcmp(crc, crc_at, CRC_PROPERTY_SIZE) != 0 || !read_properties(properties, crc_at, &code)) {
            break;
        }
        if (topic == NULL || topic[0] != topic_size || memcmp(topic, topic_at, topic_size + 1) != 0) {
            PyObject *name = PyBytes_FromStringAndSize((const char *)topic_at + 1, (Py_ssize_t)topic_size);
            /* Borrowed: nothing here changes the dictionary. */
            topic_text = name == NULL ? NULL : PyDict_GetItemWithError(topics, name);
            Py_XDECREF(name);
            if (topic_text == NULL) {
                if (PyErr_Occurred()) {
                    return NULL;
                }
                break;
            }
            topic = topic_at;
        }
        uint32_t transaction = sys_flag & 0xC;
        /* By the places of `CheckedRecord`. */
        PyObject *items[] = {
            PyLong_FromLongLong(place),
            PyLong_FromUnsignedLong(size),
            Py_NewRef(topic_text),
            PyLong_FromLong(queue_id),
            PyLong_FromLongLong(queue_offset),
            PyLong_FromLong(code),
            PyLong_FromLongLong((long long)read64(at + 56)),
            PyBool_FromLong(transaction == 0 || transaction == 8),
        };
        PyObject *record = make_tuple((PyTypeObject *)record_type, items, sizeof items / sizeof *items);
        if (record == NULL || PyList_Append(records, record) < 0) {
            Py_XDECREF(record);
            return NULL;
        }
        Py_DECREF(record);
        at += size;
    }
    return PyLong_FromSsize_t(at - buffer);
}

/* --- the messages of a pull's answer -------------------------------------------------------- */

/* Makes the text of a host of eight bytes, or returns that of the one before if it is the same. */
static PyObject *text_of_host(Bytes host, Bytes *known, PyObject **text) {
    if (*known == NULL || memcmp(*known, host, 8) != 0) {
        PyObject *made =
            PyUnicode_FromFormat("%u.%u.%u.%u:%u", host[0], host[1], host[2], host[3], (unsigned)read32(host + 4));
        if (made == NULL) {
            return NULL;
        }
        Py_XDECREF(*text);
        *text = made;
        *known = host;
    }
    return Py_NewRef(*text);
}

/* Calls a function with one run of bytes. */
static PyObject *call_with_bytes(PyObject *function, Bytes at, size_t size) {
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)size);
    PyObject *result = bytes == NULL ? NULL : PyObject_CallFunctionObjArgs(function, bytes, NULL);
    Py_XDECREF(bytes);
    return result;
}

static PyObject *decode_messages(PyObject *self, PyObject *args) {
    Bytes buffer;
    Py_ssize_t buffer_size, begin;
    PyObject *messages, *message_type, *properties_type, *broker_name;
    long unusual;
    if (!PyArg_ParseTuple(args, "y#nO!OOUl", &buffer, &buffer_size, &begin, &PyList_Type, &messages, &message_type,
                          &properties_type, &broker_name, &unusual)) {
        return NULL;
    }
    if (begin < 0 || begin > buffer_size) {
        return PyLong_FromSsize_t(begin);
    }
    Bytes at = buffer + begin, end = buffer + buffer_size, topic = NULL, born_known = NULL, store_known = NULL;
    PyObject *topic_text = NULL, *born_text = NULL, *store_text = NULL, *result = NULL;
    while (end - at >= HEAD_SIZE) {
        uint32_t size = read32(at), body_size = read32(at + 84), body_crc = read32(at + 8);
        if (size > (size_t)(end - at) || size < HEAD_SIZE + 3 || body_size > size - HEAD_SIZE - 3 ||
            read32(at + 4) != MAGIC_V1 || (read32(at + 36) & (uint32_t)unusual)) {
            break;
        }
        Bytes body = at + HEAD_SIZE, topic_at = body + body_size;
        size_t topic_size = topic_at[0], rest = size - HEAD_SIZE - body_size;
        if (topic_size > 127 || topic_size + 3 > rest) {
            break;
        }
        Bytes length = topic_at + 1 + topic_size;
        size_t properties_size = (size_t)length[0] << 8 | length[1];
        if (topic_size + 3 + properties_size != rest || (crc32_of(body, body_size) & 0x7FFFFFFF) != body_crc) {
            break;
        }
        if (topic == NULL || topic[0] != topic_size || memcmp(topic, topic_at, topic_size + 1) != 0) {
            if (!is_ascii(topic_at + 1, length)) {
                break;
            }
            PyObject *text = PyUnicode_FromStringAndSize((const char *)topic_at + 1, (Py_ssize_t)topic_size);
            if (text == NULL) {
                goto done;
            }
            Py_XDECREF(topic_text);
            topic_text = text;
            topic = topic_at;
        }
        PyObject *born = text_of_host(at + 48, &born_known, &born_text);
        PyObject *store = text_of_host(at + 64, &store_known, &store_text);
        PyObject *properties = call_with_bytes(properties_type, length + 2, properties_size);
        if (born == NULL || store == NULL || properties == NULL) {
            Py_XDECREF(born);
            Py_XDECREF(store);
            Py_XDECREF(properties);
            goto done;
        }
        /* By the places of `MessageExt`. */
        PyObject *message = PyObject_CallFunction(
            message_type, "Oy#NOiLLiiLNLNiLIi", topic_text, (const char *)body, (Py_ssize_t)body_size, properties,
            broker_name, (int)(int32_t)read32(at + 12), (long long)read64(at + 20), (long long)read64(at + 28),
            (int)(int32_t)read32(at + 16), (int)(int32_t)read32(at + 36), (long long)read64(at + 40), born,
            (long long)read64(at + 56), store, (int)(int32_t)read32(at + 72), (long long)read64(at + 76),
            (unsigned)body_crc, (int)size);
        if (message == NULL || PyList_Append(messages, message) < 0) {
            Py_XDECREF(message);
            goto done;
        }
        Py_DECREF(message);
        at += size;
    }
    result = PyLong_FromSsize_t(at - buffer);
done:
    Py_XDECREF(topic_text);
    Py_XDECREF(born_text);
    Py_XDECREF(store_text);
    return result;
}

/* --- the usual answers ------------------------------------------------------------------------ */

/* What `answer_form.AnswerForm` says of a value: its kind, and in the low bits its place among the arguments. */
enum { OPAQUE_OF, OWN_ID_OF, INT_OF, LONG_OF, IDS_OF, KINDS };
#define ANSWER_VALUES_MAX 8
#define FRAME_SIZE_MAX 16777212u

/* Returns the end of a value of a kind that begins at `at`, NULL for none. */
static Bytes end_of_value(int kind, Bytes at, Bytes end) {
    static const size_t least[KINDS] = {1, 1, 1, 1, 32}, most[KINDS] = {9, SIZE_MAX, 9, 18, 30000};
    Bytes begin = at;
    while (at < end && ((*at >= '0' && *at <= '9') || (kind == IDS_OF && *at == ',') ||
                        ((kind == IDS_OF || kind == OWN_ID_OF) && *at >= 'A' && *at <= 'F'))) {
        at++;
    }
    size_t size = (size_t)(at - begin);
    return size < least[kind] || size > most[kind] || (kind == OPAQUE_OF && *begin == '0' && size > 1) ? NULL : at;
}

static long long number_of(Bytes at, Bytes end) {
    long long number = 0;
    while (at < end) {
        number = number * 10 + (*at++ - '0');
    }
    return number;
}

enum { BUFFER, AT, LITERALS, VALUE_KINDS, HAS_BODY, TOKENS, OPAQUES, ANSWER_TYPE, EVENT_TYPE, EVENTS, ARGUMENTS };

/* Moves the token of a request with its answer to the events; returns 0 if the request is not of this kind. */
static int take_answer(PyObject *const *args, const char *kinds, const Value *values, Py_ssize_t count, Value body) {
    PyObject *opaque = NULL, *token, *fields = NULL, *answer = NULL, *event = NULL;
    int has_body = body.end != NULL;
    for (Py_ssize_t n = 0; n < count; n++) {
        if (kinds[n] >> 4 == OPAQUE_OF) {
            opaque = PyLong_FromLongLong(number_of(values[n].at, values[n].end));
        }
    }
    token = opaque == NULL ? NULL : PyDict_GetItemWithError(args[TOKENS], opaque);
    if (token == NULL) {
        Py_XDECREF(opaque);
        return PyErr_Occurred() ? -1 : 0;
    }
    int is_taken = -1;
    Py_INCREF(token);
    fields = PyTuple_New(count - 1 - (memchr(kinds, OWN_ID_OF << 4, (size_t)count) != NULL) + has_body);
    for (Py_ssize_t n = 0; fields != NULL && n < count; n++) {
        int kind = kinds[n] >> 4;
        if (kind == OPAQUE_OF || kind == OWN_ID_OF) {
            continue;
        }
        PyObject *value = kind == IDS_OF ? PyUnicode_FromStringAndSize((const char *)values[n].at,
                                                                       values[n].end - values[n].at)
                                         : PyLong_FromLongLong(number_of(values[n].at, values[n].end));
        if (value == NULL || PyTuple_SetItem(fields, kinds[n] & 15, value) < 0) {
            Py_CLEAR(fields);
        }
    }
    if (fields != NULL && has_body) {
        PyObject *bytes = PyBytes_FromStringAndSize((const char *)body.at, body.end - body.at);
        if (bytes == NULL || PyTuple_SetItem(fields, PyTuple_Size(fields) - 1, bytes) < 0) {
            Py_CLEAR(fields);
        }
    }
    answer = fields == NULL ? NULL : PyObject_CallObject(args[ANSWER_TYPE], fields);
    event = answer == NULL ? NULL : PyObject_CallFunctionObjArgs(args[EVENT_TYPE], token, answer, NULL);
    if (event != NULL && PyList_Append(args[EVENTS], event) == 0 && PyDict_DelItem(args[TOKENS], opaque) == 0 &&
        PyDict_DelItem(args[OPAQUES], token) == 0) {
        is_taken = 1;
    }
    Py_DECREF(token);
    Py_DECREF(opaque);
    Py_XDECREF(fields);
    Py_XDECREF(answer);
    Py_XDECREF(event);
    return is_taken;
}

/* Whether each place of the arguments has one value, and there is one opaque. */
static int are_places_right(const char *kinds, Py_ssize_t count) {
    unsigned places = 0, opaques = 0, ids = 0;
    for (Py_ssize_t n = 0; n < count; n++) {
        int kind = kinds[n] >> 4, place = kinds[n] & 15;
        if (kind < 0 || kind >= KINDS || (kind >= INT_OF && places >> place & 1)) {
            return 0;
        }
        opaques += kind == OPAQUE_OF;
        ids += kind == OWN_ID_OF;
        places |= kind >= INT_OF ? 1u << place : 0;
    }
    return opaques == 1 && ids <= 1 && places == (1u << (count - 1 - ids)) - 1;
}

static PyObject *take_answers(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    char *buffer, *kinds;
    Py_ssize_t buffer_size, kind_count;
    if (count != ARGUMENTS) {
        return fail(PyExc_TypeError, "take_answers takes 10 arguments");
    }
    Py_ssize_t begin = PyLong_AsSsize_t(args[AT]);
    int has_body = PyObject_IsTrue(args[HAS_BODY]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[BUFFER], &buffer, &buffer_size) < 0 ||
        PyBytes_AsStringAndSize(args[VALUE_KINDS], &kinds, &kind_count) < 0) {
        return NULL;
    }
    if (begin < 0 || begin > buffer_size || kind_count > ANSWER_VALUES_MAX || !PyTuple_Check(args[LITERALS]) ||
        PyTuple_Size(args[LITERALS]) != kind_count + 1 || !are_places_right(kinds, kind_count)) {
        return fail(PyExc_ValueError, "a place beyond the buffer, or parts that do not fit together");
    }
    Bytes at = (Bytes)buffer + begin, end = (Bytes)buffer + buffer_size;
    while (end - at >= 8) {
        uint32_t size = read32(at), header_size = read32(at + 4);
        /* A JSON header, alone or with a body. */
        if (header_size > 0xFFFFFF || size > FRAME_SIZE_MAX || size > (size_t)(end - at - 4) ||
            (has_body ? size <= header_size + 4 : size != header_size + 4)) {
            break;
        }
        Bytes here = at + 8, stop = here + header_size;
        Value values[ANSWER_VALUES_MAX], body = {NULL, NULL};
        for (Py_ssize_t n = 0; here != NULL && n <= kind_count; n++) {
            char *literal;
            Py_ssize_t literal_size;
            if (PyBytes_AsStringAndSize(PyTuple_GetItem(args[LITERALS], n), &literal, &literal_size) < 0) {
                return NULL;
            }
            if (literal_size > stop - here || memcmp(here, literal, (size_t)literal_size) != 0) {
                here = NULL;
            } else if (n < kind_count) {
                values[n].at = here += literal_size;
                here = values[n].end = end_of_value(kinds[n] >> 4, here, stop);
            } else {
                here += literal_size;
            }
        }
        if (here != stop) {
            break;
        }
        if (has_body) {
            body.at = stop;
            body.end = at + 4 + size;
        }
        int is_taken = take_answer(args, kinds, values, kind_count, body);
        if (is_taken < 0) {
            return NULL;
        }
        if (!is_taken) {
            break;
        }
        at += 4 + size;
    }
    return PyLong_FromSsize_t(at - (Bytes)buffer);
}

/* --- the requests of sends and pulls ------------------------------------------------------------ */

/* The values of a header: what `request_decoder.RequestForm` says of each kind. */
enum { SEND_OPAQUE, SEND_INT, SEND_LONG, SEND_TEXT, SEND_KINDS };
#define SEND_VALUES_MAX 8
#define SEND_HEADER_MAX 32768

static int hex_digit(unsigned char digit) {
    return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Returns the end of a value of a kind that begins at `at`, NULL for none or an unusual one. */
static Bytes end_of_send_value(int kind, Bytes at, Bytes end) {
    Bytes begin = at;
    if (kind == SEND_TEXT) {
        while (at < end && *at != '"') {
            if (*at < 0x20 || *at > 0x7E) {
                return NULL;
            }
            if (*at == '\\') {
                /* Separators of properties are written so; other escapes are unusual. */
                if (end - at < 6 || memcmp(at, "\\u00", 4) != 0 || (at[4] != '0' && at[4] != '1') ||
                    hex_digit(at[5]) < 0) {
                    return NULL;
                }
                at += 5;
            }
            at++;
        }
        return at < end ? at : NULL;
    }
    while (at < end && *at >= '0' && *at <= '9') {
        at++;
    }
    ptrdiff_t size = at - begin;
    return size < 1 || size > (kind == SEND_LONG ? 18 : 9) || (*begin == '0' && size > 1) ? NULL : at;
}

static PyObject *send_value(int kind, Value value) {
    if (kind != SEND_TEXT) {
        return PyLong_FromLongLong(number_of(value.at, value.end));
    }
    char text[SEND_HEADER_MAX], *out = text;
    for (Bytes at = value.at; at < value.end; at++) {
        if (*at == '\\') {
            *out++ = (char)((at[4] - '0') * 16 + hex_digit(at[5]));
            at += 5;
        } else {
            *out++ = (char)*at;
        }
    }
    return PyUnicode_FromStringAndSize(text, out - text);
}

/* Reads the header of a send or pull that differs from a known one in its values only. */
static PyObject *take_request(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    enum { BUFFER, AT, BYTES_MAX, LITERALS, VALUE_KINDS, NAMES, COPY_COMMAND, COPY_HEADER, COUNT };
    char *buffer, *kinds;
    Py_ssize_t buffer_size, kind_count;
    if (count != COUNT) {
        return fail(PyExc_TypeError, "take_request takes 8 arguments");
    }
    Py_ssize_t begin = PyLong_AsSsize_t(args[AT]), bytes_max = PyLong_AsSsize_t(args[BYTES_MAX]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[BUFFER], &buffer, &buffer_size) < 0 ||
        PyBytes_AsStringAndSize(args[VALUE_KINDS], &kinds, &kind_count) < 0) {
        return NULL;
    }
    if (begin < 0 || begin > buffer_size || kind_count > SEND_VALUES_MAX || !PyTuple_Check(args[LITERALS]) ||
        PyTuple_Size(args[LITERALS]) != kind_count + 1 || !PyTuple_Check(args[NAMES]) ||
        PyTuple_Size(args[NAMES]) != kind_count + 2) {
        return fail(PyExc_ValueError, "a place beyond the buffer, or parts that do not fit together");
    }
    Bytes at = (Bytes)buffer + begin, end = (Bytes)buffer + buffer_size;
    if (end - at < 8) {
        Py_RETURN_NONE;
    }
    size_t size = read32(at), header_size = read32(at + 4);
    if (header_size > SEND_HEADER_MAX || size < header_size + 4 || size > (size_t)(end - at - 4) ||
        (Py_ssize_t)size + 4 > bytes_max) {
        Py_RETURN_NONE;
    }
    Bytes here = at + 8, stop = here + header_size;
    Value values[SEND_VALUES_MAX];
    for (Py_ssize_t n = 0; n <= kind_count; n++) {
        char *literal;
        Py_ssize_t literal_size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(args[LITERALS], n), &literal, &literal_size) < 0) {
            return NULL;
        }
        if (literal_size > stop - here || memcmp(here, literal, (size_t)literal_size) != 0) {
            Py_RETURN_NONE;
        }
        here += literal_size;
        if (n < kind_count) {
            if (kinds[n] < 0 || kinds[n] >= SEND_KINDS) {
                return fail(PyExc_ValueError, "an unknown kind of value");
            }
            values[n].at = here;
            here = values[n].end = end_of_send_value(kinds[n], here, stop);
            if (here == NULL) {
                Py_RETURN_NONE;
            }
        }
    }
    if (here != stop) {
        Py_RETURN_NONE;
    }
    PyObject *command = PyObject_CallNoArgs(args[COPY_COMMAND]), *result = NULL;
    PyObject *header = command == NULL ? NULL : PyObject_CallNoArgs(args[COPY_HEADER]);
    int is_set = header != NULL;
    for (Py_ssize_t n = 0; is_set && n < kind_count; n++) {
        PyObject *value = send_value(kinds[n], values[n]);
        /* The header is frozen; nobody else has the copy yet. */
        is_set = value != NULL && PyObject_GenericSetAttr(kinds[n] == SEND_OPAQUE ? command : header,
                                                          PyTuple_GetItem(args[NAMES], n), value) == 0;
        Py_XDECREF(value);
    }
    Bytes body_end = at + 4 + size;
    if (is_set) {
        PyObject *body = stop == body_end ? Py_NewRef(Py_None)
                                          : PyBytes_FromStringAndSize((const char *)stop, body_end - stop);
        is_set = body != NULL && PyObject_SetAttr(command, PyTuple_GetItem(args[NAMES], kind_count), header) == 0 &&
                 PyObject_SetAttr(command, PyTuple_GetItem(args[NAMES], kind_count + 1), body) == 0;
        Py_XDECREF(body);
    }
    if (is_set) {
        result = Py_BuildValue("On", command, (Py_ssize_t)(body_end - (Bytes)buffer));
    }
    Py_XDECREF(header);
    Py_XDECREF(command);
    return result;
}

/* --- the entries of a queue -------------------------------------------------------------------- */

/* Returns the position and the size of records that lie back to back. */
static PyObject *find_run(PyObject *self, PyObject *entries) {
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(entries, &data, &size) < 0) {
        return NULL;
    }
    uint64_t first = 0, last = 0, before = 0, total = 0;
    for (Bytes at = (Bytes)data; size >= ENTRY_SIZE; at += ENTRY_SIZE, size -= ENTRY_SIZE) {
        last = read64(at);
        first = at == (Bytes)data ? last : first;
        before = total;
        total += read32(at + 8);
    }
    return last < first || last - first != before ? Py_NewRef(Py_None) : Py_BuildValue("KK", first, total);
}

/* --- the body of a batch's request ------------------------------------------------------------ */

/* Writes a message of a batch; returns its end. */
static unsigned char *write_entry(unsigned char *out, long long flag, const char *body, size_t body_size,
                                  const char *properties, size_t properties_size) {
    write32(out, (uint32_t)(22 + body_size + properties_size));
    memset(out + 4, 0, 8);
    write32(out + 12, (uint32_t)flag);
    write32(out + 16, (uint32_t)body_size);
    memcpy(out + 20, body, body_size);
    out += 20 + body_size;
    *out++ = (unsigned char)(properties_size >> 8);
    *out++ = (unsigned char)properties_size;
    memcpy(out, properties, properties_size);
    return out + properties_size;
}

/* Whether a row is like the first in all but two places; -1 is an error. */
static int is_alike(PyObject *row, PyObject *first, Py_ssize_t body_at, Py_ssize_t flag_at) {
    int is_same = 1;
    for (Py_ssize_t n = 0; row != first && is_same == 1 && n < PyTuple_Size(first); n++) {
        PyObject *item = PyTuple_GetItem(row, n), *wanted = PyTuple_GetItem(first, n);
        if (item != wanted && n != body_at && n != flag_at) {
            is_same = PyObject_RichCompareBool(item, wanted, Py_EQ);
        }
    }
    return is_same;
}

static PyObject *join_batch(PyObject *self, PyObject *args) {
    PyObject *rows, *data = NULL, *ids = NULL, *result = NULL;
    Py_ssize_t body_at, flag_at, text_at, shared_size, id_size, body_min, body_max, text_max;
    unsigned int number;
    const char *shared;
    if (!PyArg_ParseTuple(args, "O!nnny#nInnn", &PyList_Type, &rows, &body_at, &flag_at, &text_at, &shared,
                          &shared_size, &id_size, &number, &body_min, &body_max, &text_max)) {
        return NULL;
    }
    Py_ssize_t count = PyList_Size(rows), width = 3;
    int has_texts = text_at >= 0;
    if (count) {
        width = PyTuple_Check(PyList_GetItem(rows, 0)) ? PyTuple_Size(PyList_GetItem(rows, 0)) : 0;
    }
    if (body_at < 0 || body_at >= width || flag_at < 0 || flag_at >= width || text_at >= width ||
        (!has_texts && (count == 0 || id_size < 4 || id_size > shared_size))) {
        return fail(PyExc_ValueError, "places beyond a row or a text");
    }
    unsigned char *out = NULL;
    char *id = NULL;
    size_t total = 0;
    /* The first time for the checks and the size, the second for the bytes. */
    for (int is_second = 0; is_second < 2; is_second++) {
        for (Py_ssize_t n = 0; n < count; n++) {
            PyObject *row = PyList_GetItem(rows, n);
            const char *text = shared;
            char *body;
            Py_ssize_t body_size, text_size = shared_size;
            long long flag;
            int is_usual = PyTuple_Check(row) && PyTuple_Size(row) == width;
            if (is_usual && !has_texts && !is_second) {
                is_usual = is_alike(row, PyList_GetItem(rows, 0), body_at, flag_at);
            }
            if (is_usual < 0 ||
                (is_usual && PyBytes_AsStringAndSize(PyTuple_GetItem(row, body_at), &body, &body_size) < 0)) {
                goto done;
            }
            if (is_usual && has_texts) {
                text = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(row, text_at), &text_size);
                PyErr_Clear();
            }
            if (!is_usual || text == NULL || body_size < body_min || body_size > body_max || text_size > text_max ||
                text_size > 0xFFFF || body_size > INT32_MAX / 2 || total > INT32_MAX / 2 ||
                !read_number(PyTuple_GetItem(row, flag_at), INT32_MIN, INT32_MAX, &flag)) {
                result = Py_NewRef(Py_None);
                goto done;
            }
            if (!is_second) {
                total += 22 + (size_t)body_size + (size_t)text_size;
                continue;
            }
            out = write_entry(out, flag, body, (size_t)body_size, text, (size_t)text_size);
            if (!has_texts) {
                for (int digit = 1; digit <= 4; digit++) {
                    out[-digit] = (unsigned char)"0123456789ABCDEF"[(number + (unsigned)n) >> 4 * (digit - 1) & 15];
                }
                memcpy(id, out - id_size, (size_t)id_size);
                id += id_size;
                *id++ = ',';
            }
        }
        if (!is_second) {
            data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
            ids = PyBytes_FromStringAndSize(NULL, has_texts ? 0 : count * (id_size + 1));
            if (data == NULL || ids == NULL) {
                goto done;
            }
            out = (unsigned char *)PyBytes_AsString(data);
            id = PyBytes_AsString(ids);
        }
    }
    result = Py_BuildValue("Os#", data, PyBytes_AsString(ids), has_texts ? 0 : PyBytes_Size(ids) - 1);
done:
    Py_XDECREF(data);
    Py_XDECREF(ids);
    return result;
}

/* --- the module ----------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"encode_batch", encode_batch, METH_VARARGS, "Lay out the records and queue entries of a batch."},
    {"encode_record", (PyCFunction)(void (*)(void))encode_record, METH_FASTCALL, "Lay out the record of a message."},
    {"collect_keys", collect_keys, METH_VARARGS, "Find the keys of records, as hashes."},
    {"add_entries", add_entries, METH_VARARGS, "Add entries to an index."},
    {"check_records", check_records, METH_VARARGS, "Check the usual records of the log."},
    {"decode_messages", decode_messages, METH_VARARGS, "Read the usual records of a pull's answer."},
    {"take_answers", (PyCFunction)(void (*)(void))take_answers, METH_FASTCALL, "Take the usual answers."},
    {"take_request", (PyCFunction)(void (*)(void))take_request, METH_FASTCALL, "Read the request of a usual send or pull."},
    {"find_run", find_run, METH_O, "Find the records of entries that lie back to back."},
    {"join_batch", join_batch, METH_VARARGS, "Write the body of a batch's request."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "sparrowmq_speedups", NULL, 0, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_sparrowmq_speedups(void) {
    fill_crc_table();
    PyObject *made = PyModule_Create(&module);
    /* What the functions take and return; sparrowmq uses them only with the number it knows. */
    if (made != NULL && PyModule_AddIntConstant(made, "INTERFACE", 10) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
