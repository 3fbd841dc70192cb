/* Every quantised type becomes codes and two numbers for each group of 32 columns; none of them is rounded. */
#include "cpu_pack.h"

#include <string.h>

#include "cpu_model.h"

/* One group of one row: w = d * code + m, or d * (code - 32) for each half. */
struct group {
    uint8_t codes[GROUP];
    float first, second;
};

static float half_to_float(const uint8_t *p) {
    uint16_t half;
    memcpy(&half, p, sizeof half);
    uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
    float size;
    memcpy(&size, &bits, sizeof size);
    size *= 0x1p112f;
    return half & 0x8000 ? -size : size;
}

/* The half that is exactly `x`; 1 when there is none. */
static int float_to_half(float x, uint8_t *out) {
    const float scaled = x * 0x1p-112f;
    uint32_t bits;
    memcpy(&bits, &scaled, sizeof bits);
    const uint16_t half = (uint16_t)((bits >> 16 & 0x8000) | (bits >> 13 & 0x7fff));
    memcpy(out, &half, sizeof half);
    return half_to_float(out) != x;
}

static void spread_nibbles(const uint8_t *bytes, uint8_t codes[GROUP]) {
    for (int i = 0; i < 16; i++) {
        codes[i] = bytes[i] & 15;
        codes[i + 16] = bytes[i] >> 4;
    }
}

static void add_fifth_bits(const uint8_t *bits, uint8_t codes[GROUP]) {
    for (int i = 0; i < GROUP; i++) codes[i] |= (bits[i / 8] >> (i % 8) & 1) << 4;
}

static void read_q4_0(const uint8_t *block, int part, struct group *out) {
    (void)part;
    spread_nibbles(block + 2, out->codes);
    out->first = half_to_float(block);
    out->second = -8 * out->first;
}

static void read_q4_1(const uint8_t *block, int part, struct group *out) {
    (void)part;
    spread_nibbles(block + 4, out->codes);
    out->first = half_to_float(block);
    out->second = half_to_float(block + 2);
}

static void read_q5_0(const uint8_t *block, int part, struct group *out) {
    (void)part;
    spread_nibbles(block + 6, out->codes);
    add_fifth_bits(block + 2, out->codes);
    out->first = half_to_float(block);
    out->second = -16 * out->first;
}

static void read_q5_1(const uint8_t *block, int part, struct group *out) {
    (void)part;
    spread_nibbles(block + 8, out->codes);
    add_fifth_bits(block + 4, out->codes);
    out->first = half_to_float(block);
    out->second = half_to_float(block + 2);
}

static void read_q8_0(const uint8_t *block, int part, struct group *out) {
    (void)part;
    for (int i = 0; i < GROUP; i++) out->codes[i] = block[2 + i] ^ 0x80; /* + 128 */
    out->first = half_to_float(block);
    out->second = -128 * out->first;
}

/* Six-bit scale and minimum of part `j` of a block of 256. */
static void read_k_scales(const uint8_t *block, int j, struct group *out) {
    const uint8_t *s = block + 4;
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    out->first = half_to_float(block) * (float)scale;
    out->second = -half_to_float(block + 2) * (float)minimum;
}

static void read_q4_k(const uint8_t *block, int part, struct group *out) {
    const uint8_t *bytes = block + 16 + part / 2 * 32;
    for (int i = 0; i < GROUP; i++) out->codes[i] = part % 2 ? bytes[i] >> 4 : bytes[i] & 15;
    read_k_scales(block, part, out);
}

static void read_q5_k(const uint8_t *block, int part, struct group *out) {
    const uint8_t *bytes = block + 48 + part / 2 * 32, *bits = block + 16;
    for (int i = 0; i < GROUP; i++)
        out->codes[i] = (part % 2 ? bytes[i] >> 4 : bytes[i] & 15) | (bits[i] >> part & 1) << 4;
    read_k_scales(block, part, out);
}

static void read_q6_k(const uint8_t *block, int part, struct group *out) {
    const int half = part / 4, quarter = part % 4;
    const uint8_t *low = block + half * 64 + quarter % 2 * 32, *high = block + 128 + half * 32;
    const int8_t *scales = (const int8_t *)block + 192 + part * 2;
    for (int i = 0; i < GROUP; i++)
        out->codes[i] = (quarter < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> (2 * quarter) & 3) << 4;
    out->first = half_to_float(block + 208) * (float)scales[0];
    out->second = half_to_float(block + 208) * (float)scales[1];
}

struct format {
    int32_t kind, parts, bytes; /* groups in a block of the file, and its bytes */
    void (*read)(const uint8_t *block, int part, struct group *out);
};

static const struct format FORMATS[] = {
    [Q4_0] = {NIBBLES_HALF, 1, 18, read_q4_0},   [Q4_1] = {NIBBLES_HALF, 1, 20, read_q4_1},
    [Q5_0] = {BYTES_HALF, 1, 22, read_q5_0},     [Q5_1] = {BYTES_HALF, 1, 24, read_q5_1},
    [Q8_0] = {BYTES_HALF, 1, 34, read_q8_0},     [Q4_K] = {NIBBLES_FLOAT, 8, 144, read_q4_k},
    [Q5_K] = {BYTES_FLOAT, 8, 176, read_q5_k},   [Q6_K] = {BYTES_PAIR, 8, 210, read_q6_k},
    [BF16] = {BFLOATS, 0, 0, 0},
};
enum { NUM_FORMATS = sizeof FORMATS / sizeof *FORMATS };

int32_t packed_kind(int32_t type) {
    if (type == BF16) return BFLOATS;
    return type >= 0 && type < NUM_FORMATS && FORMATS[type].read ? FORMATS[type].kind : -1;
}

int64_t packed_bytes(int32_t type, int32_t rows, int32_t columns) {
    const struct matrix m = {.kind = packed_kind(type), .rows = rows, .columns = columns};
    return (int64_t)num_tiles(&m) * num_groups(&m) * GROUP_BYTES[m.kind];
}

/* Write one row's group into its lane of the interleaved group. */
static int place_group(int32_t kind, const struct group *from, int lane, uint8_t *to) {
    const int nibbles = kind == NIBBLES_HALF || kind == NIBBLES_FLOAT;
    for (int i = 0; i < (nibbles ? 16 : GROUP); i++)
        to[i / 4 * 64 + lane * 4 + i % 4] = nibbles ? from->codes[i] | from->codes[i + 16] << 4 : from->codes[i];
    uint8_t *scales = to + (nibbles ? 256 : 512);
    if (kind == NIBBLES_HALF || kind == BYTES_HALF)
        return float_to_half(from->first, scales + 2 * lane) | float_to_half(from->second, scales + 32 + 2 * lane);
    memcpy(scales + 4 * lane, &from->first, sizeof(float));
    memcpy(scales + 64 + 4 * lane, &from->second, sizeof(float));
    return 0;
}

static void pack_bfloats(const uint8_t *source, int32_t columns, int lane, uint8_t *tile) {
    for (int32_t i = 0; i < columns; i++) memcpy(tile + i / 2 * 64 + lane * 4 + i % 2 * 2, source + 2 * (int64_t)i, 2);
}

static int pack_row(int32_t type, const uint8_t *source, int32_t columns, int lane, uint8_t *tile) {
    const struct format *format = &FORMATS[type];
    int inexact = 0;
    for (int32_t g = 0; g < columns / GROUP; g++) {
        struct group group;
        format->read(source + (int64_t)(g / format->parts) * format->bytes, g % format->parts, &group);
        inexact |= place_group(format->kind, &group, lane, tile + (int64_t)g * GROUP_BYTES[format->kind]);
    }
    return inexact;
}

/* The row of the file for row `row` of the matrix: pairs lie together in the file, halves of a head here. */
static int32_t stored_row(int32_t row, int32_t head_dim) {
    if (!head_dim) return row;
    const int32_t within = row % head_dim, half = head_dim / 2;
    return row - within + (within < half ? 2 * within : 2 * (within - half) + 1);
}

int32_t pack_matrix(
    int32_t type, const uint8_t *source, int32_t rows, int32_t columns, int32_t head_dim, uint8_t *tiles) {
    const struct matrix m = {.tiles = tiles, .kind = packed_kind(type), .rows = rows, .columns = columns};
    if (m.kind < 0 || (m.kind != BFLOATS && columns % (GROUP * FORMATS[type].parts))) return 1;
    int64_t row_bytes = 2 * (int64_t)columns;
    if (m.kind != BFLOATS) row_bytes = columns / (GROUP * FORMATS[type].parts) * (int64_t)FORMATS[type].bytes;
    int inexact = 0;
    for (int32_t row = 0; row < rows; row++) {
        const uint8_t *from = source + stored_row(row, head_dim) * row_bytes;
        uint8_t *tile = tiles + (tile_of(&m, row / TILE_ROWS) - m.tiles);
        if (m.kind == BFLOATS) pack_bfloats(from, columns, row % TILE_ROWS, tile);
        else inexact |= pack_row(type, from, columns, row % TILE_ROWS, tile);
    }
    return inexact;
}
