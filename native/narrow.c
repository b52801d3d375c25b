/* Floats of 16 bits, which are computed in float32: as that, and rounded to the nearest, to even ones of two. */
#include "kernels.h"
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HARDWARE
#endif

static int bfloat16 = -1; /* its number among NumPy's types */

/* set_bfloat16(number of the type) */
PyObject *set_bfloat16(PyObject *module, PyObject *number) {
    (void)module;
    bfloat16 = (int)PyLong_AsLong(number);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

bool is_narrow(int type) { return type == NPY_HALF || (type == bfloat16 && type >= 0); }

static inline float of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float widened(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest < 0x400) return of_bits(sign | bits_of((float)rest * 0x1p-24f));
    return of_bits(sign | ((rest << 13) + 0x38000000));
}

static inline uint16_t narrowed(float x) {
    uint32_t bits = bits_of(x), rest = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (rest > 0x7f800000) return sign | 0x7e00 | (rest >> 13 & 0x3ff);
    if (rest >= 0x477ff000) return sign | 0x7c00; /* rounds to more than the largest */
    if (rest < 0x38800000) return sign | (uint16_t)(bits_of(of_bits(rest) + 0.5f) - 0x3f000000); /* below the normal ones they are multiples of 2^-24 */
    return sign | (uint16_t)((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}

#ifdef HARDWARE
__attribute__((target("avx,f16c"))) static npy_intp widened_by_eight(const uint16_t *in, float *out, npy_intp count) {
    npy_intp k = 0;
    for (; k + 8 <= count; k += 8) _mm256_storeu_ps(out + k, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + k))));
    return k;
}

__attribute__((target("avx,f16c"))) static npy_intp narrowed_by_eight(const float *in, uint16_t *out, npy_intp count) {
    npy_intp k = 0;
    for (; k + 8 <= count; k += 8) _mm_storeu_si128((__m128i *)(out + k), _mm256_cvtps_ph(_mm256_loadu_ps(in + k), _MM_FROUND_TO_NEAREST_INT));
    return k;
}

static bool by_hardware(void) {
    static int known = -1;
    if (known < 0) known = __builtin_cpu_supports("f16c") != 0;
    return known;
}
#endif

void widen(int type, const char *from, float *out, npy_intp count) {
    const uint16_t *in = (const uint16_t *)from;
    npy_intp k = 0;
    if (type != NPY_HALF) {
        for (; k < count; k++) out[k] = of_bits((uint32_t)in[k] << 16);
        return;
    }
#ifdef HARDWARE
    if (by_hardware()) k = widened_by_eight(in, out, count);
#endif
    for (; k < count; k++) out[k] = widened(in[k]);
}

void narrow(int type, const float *in, char *to, npy_intp count) {
    uint16_t *out = (uint16_t *)to;
    npy_intp k = 0;
    if (type != NPY_HALF) {
        for (; k < count; k++) {
            uint32_t bits = bits_of(in[k]), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            out[k] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16 & 0x8000) | 0x7fc0 : rounded);
        }
        return;
    }
#ifdef HARDWARE
    if (by_hardware()) k = narrowed_by_eight(in, out, count);
#endif
    for (; k < count; k++) out[k] = narrowed(in[k]);
}
