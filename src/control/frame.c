/* frame.c: the header of frame.h, to bytes and back; owns nothing. */
#include "control/frame.h"

#include "base/error.h"

static const unsigned char MAGIC[4] = { 'S', 'L', 'C', 'E' };

static void write_u32(unsigned char *bytes, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++)
        bytes[i] = (unsigned char)(value >> (8 * i));
}

static uint32_t read_u32(const unsigned char *bytes)
{
    uint32_t value = 0;
    for (unsigned i = 0; i < 4; i++)
        value |= (uint32_t)bytes[i] << (8 * i);
    return value;
}

const char *slc_frame_text(uint32_t type)
{
    switch (type) {
#define TEXT_CASE(name, number, text, longest) \
    case number: return text;
        SLC_FRAME_LIST(TEXT_CASE)
#undef TEXT_CASE
    default: return "unknown";
    }
}

bool slc_frame_known(uint32_t type)
{
    switch (type) {
#define KNOWN_CASE(name, number, text, longest) case number:
        SLC_FRAME_LIST(KNOWN_CASE)
#undef KNOWN_CASE
        return true;
    default: return false;
    }
}

uint32_t slc_frame_longest(uint32_t type)
{
    switch (type) {
#define LONGEST_CASE(name, number, text, longest) \
    case number: return longest;
        SLC_FRAME_LIST(LONGEST_CASE)
#undef LONGEST_CASE
    default: return 0;
    }
}

void slc_frame_encode(const slc_frame_header *header, unsigned char bytes[SLC_FRAME_HEADER])
{
    for (unsigned i = 0; i < 4; i++)
        bytes[i] = MAGIC[i];
    write_u32(bytes + 4, header->version);
    write_u32(bytes + 8, header->type);
    write_u32(bytes + 12, header->tag);
    write_u32(bytes + 16, header->length);
    write_u32(bytes + 20, 0);
}

sluice_status slc_frame_decode(const unsigned char bytes[SLC_FRAME_HEADER], slc_frame_header *header, sluice_error *error)
{
    *header = (slc_frame_header){ 0 };
    for (unsigned i = 0; i < 4; i++)
        if (bytes[i] != MAGIC[i])
            return slc_fail(error, SLUICE_INVALID, "frame",
                            "magic (%02x %02x %02x %02x) must be 53 4c 43 45: the other end is no rank of Sluice", bytes[0], bytes[1],
                            bytes[2], bytes[3]);
    *header = (slc_frame_header){ .version = read_u32(bytes + 4), .type = read_u32(bytes + 8), .tag = read_u32(bytes + 12),
                                  .length = read_u32(bytes + 16) };
    if (header->version != SLC_PROTOCOL_VERSION)
        return slc_fail(error, SLUICE_INVALID, "frame", "protocol version (%u) must be %u", header->version, SLC_PROTOCOL_VERSION);
    uint32_t longest = slc_frame_longest(header->type);
    if (!slc_frame_known(header->type))
        return slc_fail(error, SLUICE_INVALID, "frame", "type (%u) is unknown", header->type);
    uint32_t reserved = read_u32(bytes + 20);
    if (reserved != 0)
        return slc_fail(error, SLUICE_INVALID, "frame", "reserved word (%u) must be 0", reserved);
    if (header->length > longest)
        return slc_fail(error, SLUICE_INVALID, "frame", "length (%u) of type %s must be at most %u", header->length,
                        slc_frame_text(header->type), longest);
    return SLUICE_OK;
}
