/* box.c: rectangles and strided ranges. Pure arithmetic on values; owns nothing and fails never. */
#include "plan/box.h"

/* ---- boxes ---- */

slc_box slc_box_whole(int ndim, const int64_t *shape)
{
    slc_box box = { .ndim = ndim };
    for (int d = 0; d < ndim; d++)
        box.high[d] = shape[d];
    return box;
}

bool slc_box_empty(const slc_box *box)
{
    for (int d = 0; d < box->ndim; d++)
        if (box->low[d] >= box->high[d])
            return true;
    return false;
}

int64_t slc_box_volume(const slc_box *box)
{
    if (slc_box_empty(box))
        return 0;
    int64_t volume = 1;
    for (int d = 0; d < box->ndim; d++)
        volume *= box->high[d] - box->low[d];
    return volume;
}

slc_box slc_box_intersect(const slc_box *a, const slc_box *b)
{
    slc_box both = { .ndim = a->ndim };
    for (int d = 0; d < a->ndim; d++) {
        both.low[d] = a->low[d] > b->low[d] ? a->low[d] : b->low[d];
        both.high[d] = a->high[d] < b->high[d] ? a->high[d] : b->high[d];
        if (both.high[d] < both.low[d])
            both.high[d] = both.low[d];
    }
    return both;
}

/* ---- ranges ---- */

bool slc_range_resolve(slc_range range, int64_t extent, slc_range *resolved)
{
    if (range.start < 0 || range.start > extent || range.step < 1 || range.count < SLC_TO_END)
        return false;
    int64_t left = extent - range.start;
    int64_t most = left == 0 ? 0 : (left - 1) / range.step + 1;
    int64_t count = range.select ? 1 : range.count == SLC_TO_END ? most : range.count;
    if (count > most || (range.select && range.count != SLC_TO_END && range.count != 1))
        return false;
    *resolved = (slc_range){ .start = range.start, .step = count > 1 ? range.step : 1, .count = count, .select = range.select };
    return true;
}

/* The first position of the range whose index is at least `from`. */
static int64_t first_position(slc_range range, int64_t from)
{
    if (from <= range.start)
        return 0;
    int64_t position = (from - range.start - 1) / range.step + 1;
    return position < range.count ? position : range.count;
}

void slc_range_clip(slc_range range, int64_t from, int64_t to, int64_t *low, int64_t *high)
{
    *low = first_position(range, from);
    *high = first_position(range, to);
    if (*high < *low)
        *high = *low;
}

__extension__ typedef __int128 wide;

/* x with a * x = 1 modulo m, where gcd(a, m) is 1; 0 for m = 1. */
static int64_t inverse(int64_t a, int64_t m)
{
    int64_t r0 = m, r1 = a % m, t0 = 0, t1 = 1;
    while (r1 != 0) {
        int64_t quotient = r0 / r1, r = r0 - quotient * r1, t = t0 - quotient * t1;
        r0 = r1;
        r1 = r;
        t0 = t1;
        t1 = t;
    }
    return t0 < 0 ? t0 + m : t0 % m;
}

bool slc_range_meets(slc_range a, slc_range b)
{
    if (a.count == 0 || b.count == 0)
        return false;
    int64_t a_last = a.start + (a.count - 1) * a.step, b_last = b.start + (b.count - 1) * b.step;
    int64_t low = a.start > b.start ? a.start : b.start, high = a_last < b_last ? a_last : b_last;
    if (low > high)
        return false;
    int64_t g = a.step, other = b.step;
    while (other != 0) {
        int64_t rest = g % other;
        g = other;
        other = rest;
    }
    int64_t apart = b.start - a.start;
    if (apart % g != 0)
        return false;
    /* Indices of both: one residue modulo the least common multiple (Chinese remainders). */
    wide modulus = b.step / g;
    wide k = (wide)(apart / g) % modulus * inverse(a.step / g, b.step / g) % modulus;
    if (k < 0)
        k += modulus;
    wide common = a.start + (wide)a.step * k, period = (wide)a.step * modulus;
    if (common < low)
        common += (low - common + period - 1) / period * period;
    return common <= high;
}
