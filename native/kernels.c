/* The kernels of operations that are computed at once. They hold no memory of their own and may run in any thread that has the interpreter. */
#include "kernels.h"
#include <limits.h>
#include <math.h>
#include <string.h>

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
#define PRODUCT_OF(name, Int, Real) \
    typedef void (*name)(int, int, int, Int, Int, Int, Real, const Real *, Int, const Real *, Int, Real, Real *, Int);
PRODUCT_OF(Single64, int64_t, float)
PRODUCT_OF(Double64, int64_t, double)
PRODUCT_OF(Single32, int, float)
PRODUCT_OF(Double32, int, double)

typedef void (*Complex64)(int, int, int, int64_t, int64_t, int64_t, const void *, const void *, int64_t, const void *, int64_t, const void *, void *, int64_t);
typedef void (*Complex32)(int, int, int, int, int, int, const void *, const void *, int, const void *, int, const void *, void *, int);

static struct { void *single, *twice, *pairs, *wide_pairs; bool wide; } blas;

/* set_blas(address of sgemm, of dgemm, of cgemm, of zgemm, whether its integers have 64 bits) */
PyObject *set_blas(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long single, twice, pairs, wide_pairs;
    int wide;
    if (!PyArg_ParseTuple(args, "KKKKp", &single, &twice, &pairs, &wide_pairs, &wide)) return NULL;
    blas.single = (void *)single;
    blas.twice = (void *)twice;
    blas.pairs = (void *)pairs;
    blas.wide_pairs = (void *)wide_pairs;
    blas.wide = wide;
    Py_RETURN_NONE;
}

/* An integer between these ends, in its bytes. */
#define WHOLE_AT(name, Type, least, most) \
    case name: { \
        Type narrow = (Type)value; \
        if (value < (least) || value > (most)) return false; \
        memcpy(where, &narrow, sizeof narrow); \
        return true; \
    }

bool number_at(PyObject *number, int type, char *where) {
    if (PyTypeNum_ISINTEGER(type)) {
        long value = PyLong_Check(number) ? PyLong_AsLong(number) : -1;
        if (value == -1 && (PyErr_Occurred() || !PyLong_Check(number))) { PyErr_Clear(); return false; }
        switch (type) {
            WHOLE_AT(NPY_BYTE, int8_t, INT8_MIN, INT8_MAX)
            WHOLE_AT(NPY_UBYTE, uint8_t, 0, UINT8_MAX)
            WHOLE_AT(NPY_SHORT, int16_t, INT16_MIN, INT16_MAX)
            WHOLE_AT(NPY_INT, int32_t, INT32_MIN, INT32_MAX)
            WHOLE_AT(NPY_LONG, int64_t, LONG_MIN, LONG_MAX)
            default: return false;
        }
    }
    if (type == NPY_BOOL && PyBool_Check(number)) { *where = number == Py_True; return true; }
    if (type == NPY_CFLOAT) {
        double parts[2];
        if (!any_number_at(number, NPY_CDOUBLE, (char *)parts)) return false;
        float narrow[2] = {(float)parts[0], (float)parts[1]};
        memcpy(where, narrow, 8);
        return true;
    }
    bool narrows = is_narrow(type);
    if (type != NPY_FLOAT32 && type != NPY_FLOAT64 && !narrows) return false;
    double value = PyFloat_AsDouble(number);
    if (value == -1.0 && PyErr_Occurred()) { PyErr_Clear(); return false; }
    float single = (float)value;
    if (narrows) { /* a write of a number that overflows is an error */
        float back;
        narrow(type, &single, where, 1);
        widen(type, where, &back, 1);
        if (isinf(back) && !isinf(value)) return false;
    } else if (type == NPY_FLOAT32) memcpy(where, &single, 4);
    else memcpy(where, &value, 8);
    return true;
}

/* The same where there is room for 16 bytes. */
bool any_number_at(PyObject *number, int type, char *where) {
    if (type != NPY_CDOUBLE) return number_at(number, type, where);
    Py_complex value = {0.0, 0.0};
    if (PyComplex_CheckExact(number)) value = ((PyComplexObject *)number)->cval;
    else value.real = PyFloat_AsDouble(number);
    if (value.real == -1.0 && PyErr_Occurred()) { PyErr_Clear(); return false; }
    memcpy(where, &value, 16);
    return true;
}

char *element_of(PyArrayObject *array, int type, npy_intp offset) {
    int found = PyArray_TYPE(array);
    npy_intp size = PyArray_ITEMSIZE(array);
    if (found != type) {
        if ((found == NPY_CFLOAT && type == NPY_FLOAT) || (found == NPY_CDOUBLE && type == NPY_DOUBLE)) size /= 2;
        else if ((found == NPY_FLOAT && type == NPY_CFLOAT) || (found == NPY_DOUBLE && type == NPY_CDOUBLE)) size *= 2;
        else return NULL;
    }
    return PyArray_BYTES(array) + offset * size;
}

static bool types_are_wide(int type) { return type == NPY_FLOAT64 || type == NPY_CDOUBLE; }

/* One run of the innermost loop for every position of the dims around it. */
typedef void (*Row)(const Kernel *, char **, npy_intp);

static void every_row(const Kernel *kernel, char **pointers, Row row) {
    int operands = kernel->inputs + 1, inner = kernel->ndim - 1;
    if (inner == 0) { row(kernel, pointers, kernel->dims[0]); return; }
    npy_intp index[MOST_DIMS] = {0};
    for (;;) {
        row(kernel, pointers, kernel->dims[inner]);
        int d = inner - 1;
        for (; d >= 0; d--) {
            for (int k = 0; k < operands; k++) pointers[k] += kernel->steps[d][k];
            if (++index[d] < kernel->dims[d]) break;
            for (int k = 0; k < operands; k++) pointers[k] -= kernel->steps[d][k] * kernel->dims[d];
            index[d] = 0;
        }
        if (d < 0) return;
    }
}

static void loop_row(const Kernel *kernel, char **pointers, npy_intp count) {
    char *args[MOST_INPUTS + 1];
    memcpy(args, pointers, sizeof args);
    kernel->loop(args, &count, kernel->steps[kernel->ndim - 1], kernel->data);
}

static void relu_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    double zero = 0.0;
    char *args[3] = {pointers[0], (char *)&zero, pointers[1]};
    npy_intp steps[3] = {step[0], 0, step[1]};
    kernel->loop(args, &count, steps, kernel->data);
}

static void reduce_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    char *args[3] = {pointers[1], pointers[0], pointers[1]};
    npy_intp steps[3] = {step[1], step[0], step[1]};
    kernel->loop(args, &count, steps, kernel->data);
}

/* Adds up float32 in float64: what PyTorch's sums keep by their vectors' many lanes, a plain chain of additions would lose. */
static void sum_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    double *out = (double *)pointers[1];
    const char *in = pointers[0];
    if (step[1] == 0) {
        double first = 0.0, second = 0.0, third = 0.0, fourth = 0.0;
        npy_intp k = 0;
        for (; k + 4 <= count; k += 4, in += 4 * step[0]) {
            first += *(const float *)in;
            second += *(const float *)(in + step[0]);
            third += *(const float *)(in + 2 * step[0]);
            fourth += *(const float *)(in + 3 * step[0]);
        }
        for (; k < count; k++, in += step[0]) first += *(const float *)in;
        *out += (first + second) + (third + fourth);
    } else
        for (npy_intp k = 0; k < count; k++, in += step[0]) *(double *)((char *)out + k * step[1]) += *(const float *)in;
}

/* The sum in `wide` of as many numbers as the result has, complex ones as two, rounded once; its steps are those of float64. */
static bool sum(Kernel *kernel, char **pointers, float *out) {
    npy_intp count = kernel->out_type == NPY_CFLOAT ? 2 * kernel->numel : kernel->numel;
    double few[64], *wide = count <= 64 ? few : PyMem_Malloc(count * sizeof(double));
    if (wide == NULL) return false;
    for (npy_intp k = 0; k < count; k++) wide[k] = 0.0;
    pointers[1] = (char *)wide;
    every_row(kernel, pointers, sum_row);
    for (npy_intp k = 0; k < count; k++) out[k] = (float)wide[k];
    if (wide != few) PyMem_Free(wide);
    return true;
}

/* 1 / (1 + exp(-x)), in the memory of the result. */
static void sigmoid_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    char *first[2] = {pointers[0], pointers[1]}, *then[2] = {pointers[1], pointers[1]};
    npy_intp same[2] = {step[1], step[1]};
    kernel->second(first, &count, step, kernel->second_data);
    kernel->loop(then, &count, same, kernel->data);
    if (kernel->out_type == NPY_FLOAT32)
        for (npy_intp k = 0; k < count; k++) { float *x = (float *)(pointers[1] + k * step[1]); *x = 1.0f / (*x + 1.0f); }
    else
        for (npy_intp k = 0; k < count; k++) { double *x = (double *)(pointers[1] + k * step[1]); *x = 1.0 / (*x + 1.0); }
}

#define COPIED(Type) \
    for (npy_intp k = 0; k < count; k++) *(Type *)(out + k * there) = *(const Type *)(in + k * step);

/* Elements that are moved as they are, by how many bytes they have. */
typedef struct { uint64_t first, second; } Pair;
#define BY_SIZE(size, MOVED) \
    if ((size) == 4) { MOVED(uint32_t) } \
    else if ((size) == 8) { MOVED(uint64_t) } \
    else if ((size) == 16) { MOVED(Pair) } \
    else if ((size) == 2) { MOVED(uint16_t) } \
    else { MOVED(uint8_t) }

static void copied(npy_intp size, const char *in, npy_intp step, char *out, npy_intp there, npy_intp count) {
    if (step == size && there == size) memcpy(out, in, count * size);
    else BY_SIZE(size, COPIED)
}

/* From n bytes behind the beginning on. */
static void copy_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    copied(kernel->m, pointers[0] + kernel->n, step[0], pointers[1], step[1], count);
}

#define CHOSEN(Type) \
    for (npy_intp k = 0; k < count; k++) \
        *(Type *)(pointers[3] + k * step[3]) \
            = *(uint8_t *)(pointers[0] + k * step[0]) ? *(Type *)(pointers[1] + k * step[1]) : *(Type *)(pointers[2] + k * step[2]);

static void where_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    BY_SIZE(kernel->m, CHOSEN)
}

#define CONVERTED(From, To) \
    for (npy_intp k = 0; k < count; k++) *(To *)(pointers[1] + k * step[1]) = (To)*(From *)(pointers[0] + k * step[0]);
#define CONVERTED_FROM(To) \
    switch (kernel->types[0]) { \
        case NPY_FLOAT32: CONVERTED(float, To) break; \
        case NPY_FLOAT64: CONVERTED(double, To) break; \
        case NPY_INT32: CONVERTED(int32_t, To) break; \
        case NPY_LONG: CONVERTED(int64_t, To) break; \
        default: CONVERTED(uint8_t, To) \
    }

/* Complex numbers of complex ones, or of real ones. */
#define BOTH(From, To, imaginary) \
    for (npy_intp k = 0; k < count; k++) { \
        const From *in = (const From *)(pointers[0] + k * step[0]); \
        To *out = (To *)(pointers[1] + k * step[1]); \
        out[0] = (To)in[0]; \
        out[1] = (To)(imaginary); \
    }
#define BOTH_FROM(To) \
    switch (kernel->types[0]) { \
        case NPY_CFLOAT: BOTH(float, To, in[1]) break; \
        case NPY_CDOUBLE: BOTH(double, To, in[1]) break; \
        case NPY_FLOAT32: BOTH(float, To, 0) break; \
        case NPY_FLOAT64: BOTH(double, To, 0) break; \
        case NPY_INT32: BOTH(int32_t, To, 0) break; \
        case NPY_LONG: BOTH(int64_t, To, 0) break; \
        default: BOTH(uint8_t, To, 0) \
    }

/* Between the types of `_CONVERTED` in `small.py`, and from them and from complex numbers to complex ones; bool and uint8 are bytes. */
static void cast_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    switch (kernel->out_type) {
        case NPY_FLOAT32: CONVERTED_FROM(float) break;
        case NPY_FLOAT64: CONVERTED_FROM(double) break;
        case NPY_LONG: CONVERTED_FROM(int64_t) break;
        case NPY_INT32: CONVERTED_FROM(int32_t) break;
        case NPY_CFLOAT: BOTH_FROM(float) break;
        case NPY_CDOUBLE: BOTH_FROM(double) break;
        default: CONVERTED_FROM(bool)
    }
}

/* x + i y */
#define JOINED(Type) \
    for (npy_intp k = 0; k < count; k++) { \
        Type *out = (Type *)(pointers[2] + k * step[2]); \
        out[0] = *(const Type *)(pointers[0] + k * step[0]); \
        out[1] = *(const Type *)(pointers[1] + k * step[1]); \
    }

static void complex_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    if (kernel->out_type == NPY_CFLOAT) { JOINED(float) }
    else { JOINED(double) }
}

/* An element at the position along one dim that the index says: n positions, k bytes from one to the next. */
#define PICKED(Type) \
    for (npy_intp k = 0; k < count; k++) \
        *(Type *)(pointers[2] + k * step[2]) = *(Type *)(pointers[0] + k * step[0] + within(*(int64_t *)(pointers[1] + k * step[1]), kernel->n) * kernel->k);

static inline npy_intp within(int64_t index, npy_intp extent) { return index < 0 ? 0 : index >= extent ? extent - 1 : index; }

static void gather_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    BY_SIZE(kernel->m, PICKED)
}

/* Of m blocks of n slices of k bytes each, the slices that the index names. */
static void lookup(const Kernel *kernel, char **pointers, char *out) {
    const int64_t *index = (const int64_t *)pointers[1];
    npy_intp count = kernel->sizes[1];
    for (npy_intp block = 0; block < kernel->m; block++)
        for (npy_intp k = 0; k < count; k++, out += kernel->k)
            memcpy(out, pointers[0] + (block * kernel->n + within(index[k], kernel->n)) * kernel->k, kernel->k);
}

/* The operands side by side: m times the next rows[k] bytes of each. */
static void join(const Kernel *kernel, char **pointers, char *out) {
    for (npy_intp block = 0; block < kernel->m; block++)
        for (int k = 0; k < kernel->inputs; k++) {
            memcpy(out, pointers[k] + block * kernel->rows[k][0], kernel->rows[k][0]);
            out += kernel->rows[k][0];
        }
}

/* ---------------------------------------------------------------------------------------- functions of rows of n numbers */

#define NEVER(x) false
#define NUMBER_AT(Type, k) (*(const Type *)(in + (k) * step))

/* Whether x stands before y where rows are sorted; the largest first (`down`) or last, NaN counts as larger than all. */
#define BEFORE(x, y, is_nan, down) ((down) ? (is_nan(x) && !is_nan(y)) || x > y : (is_nan(y) && !is_nan(x)) || x < y)

/* Where the first of the largest or smallest stands. The first NaN is it. */
#define BEST_OF(name, Type, is_nan, sign) \
    static void name(const Kernel *kernel, const char *in, npy_intp step, char *out, npy_intp there) { \
        (void)there; \
        npy_intp best = 0; \
        for (npy_intp k = 1; k < kernel->n && !is_nan(NUMBER_AT(Type, best)); k++) \
            if (is_nan(NUMBER_AT(Type, k)) || NUMBER_AT(Type, k) sign NUMBER_AT(Type, best)) best = k; \
        *(int64_t *)out = best; \
    }

/* Running sums and products, kept in `Wide`. */
#define RUNNING_OF(name, Type, Wide, start, sign) \
    static void name(const Kernel *kernel, const char *in, npy_intp step, char *out, npy_intp there) { \
        Wide total = start; \
        for (npy_intp k = 0; k < kernel->n; k++) { \
            total = total sign (Wide)NUMBER_AT(Type, k); \
            *(Type *)(out + k * there) = (Type)total; \
        } \
    }

/* The product of all of them, kept in `Wide`. */
#define MULTIPLIED(name, Type, Wide) \
    static void name(const Kernel *kernel, const char *in, npy_intp step, char *out, npy_intp there) { \
        (void)there; \
        Wide total = 1; \
        for (npy_intp k = 0; k < kernel->n; k++) total *= (Wide)NUMBER_AT(Type, k); \
        *(Type *)out = (Type)total; \
    }

/* Sorts of x those from `low` to `high` that come to lie between `first` and `last`: by quicksort, which leaves out the other parts, or by heapsort
   where the pivots were bad ones. */
#define ARRANGED_OF(name, Type, is_nan, down) \
    typedef struct { Type value; int64_t index; } Item_##name; \
    static inline bool before_##name(Item_##name x, Item_##name y) { \
        if (BEFORE_IN(x, y, is_nan, down)) return true; \
        return !BEFORE_IN(y, x, is_nan, down) && x.index < y.index; \
    } \
    static void sift_##name(Item_##name *x, npy_intp place, npy_intp count) { \
        Item_##name item = x[place]; \
        for (npy_intp next = 2 * place + 1; next < count; place = next, next = 2 * place + 1) { \
            if (next + 1 < count && before_##name(x[next], x[next + 1])) next++; \
            if (!before_##name(item, x[next])) break; \
            x[place] = x[next]; \
        } \
        x[place] = item; \
    } \
    static void arrange_##name(Item_##name *x, npy_intp low, npy_intp high, npy_intp first, npy_intp last, int depth) { \
        while (high - low > 16) { \
            if (depth-- == 0) { \
                Item_##name *heap = x + low; \
                npy_intp count = high - low; \
                for (npy_intp k = count / 2; k-- > 0;) sift_##name(heap, k, count); \
                for (npy_intp k = count - 1; k > 0; k--) { Item_##name top = heap[0]; heap[0] = heap[k]; heap[k] = top; sift_##name(heap, 0, k); } \
                return; \
            } \
            Item_##name a = x[low], b = x[low + (high - low) / 2], c = x[high - 1], swap; \
            if (before_##name(b, a)) { swap = a; a = b; b = swap; } \
            Item_##name pivot = before_##name(c, b) ? (before_##name(c, a) ? a : c) : b; \
            npy_intp i = low - 1, j = high; \
            for (;;) { \
                do i++; while (before_##name(x[i], pivot)); \
                do j--; while (before_##name(pivot, x[j])); \
                if (i >= j) break; \
                swap = x[i]; x[i] = x[j]; x[j] = swap; \
            } \
            bool left = first <= j, right = last > j + 1; \
            if (left && right) { arrange_##name(x, low, j + 1, first, last, depth); low = j + 1; } \
            else if (left) high = j + 1; \
            else low = j + 1; \
        } \
        for (npy_intp k = low + 1; k < high; k++) { \
            Item_##name item = x[k]; \
            npy_intp place = k; \
            for (; place > low && before_##name(item, x[place - 1]); place--) x[place] = x[place - 1]; \
            x[place] = item; \
        } \
    } \
    static void select_##name(const Kernel *kernel, const char *in, npy_intp step, char *out, npy_intp there) { \
        Item_##name *items = (Item_##name *)kernel->scratch; \
        int depth = 8; \
        for (npy_intp k = kernel->n; k > 0; k >>= 1) depth += 2; \
        for (npy_intp k = 0; k < kernel->n; k++) { items[k].value = NUMBER_AT(Type, k); items[k].index = k; } \
        arrange_##name(items, 0, kernel->n, kernel->m, kernel->k, depth); \
        for (npy_intp k = kernel->m; k < kernel->k; k++) *(int64_t *)(out + (k - kernel->m) * there) = items[k].index; \
    }
#define BEFORE_IN(a, b, is_nan, down) before_numbers(a.value, b.value, is_nan, down)
#define before_numbers(x, y, is_nan, down) BEFORE(x, y, is_nan, down)

/* Positions of the elements of ranks m to k, the first of equal ones first: each goes to its place among the best k so far. */
#define RANKED_OF(name, Type, is_nan, down) \
    static void name(const Kernel *kernel, const char *in, npy_intp step, char *out, npy_intp there) { \
        if (kernel->k > MOST_RANKS) { select_##name(kernel, in, step, out, there); return; } \
        int64_t best[MOST_RANKS]; \
        npy_intp found = 0; \
        for (npy_intp k = 0; k < kernel->n; k++) { \
            Type x = NUMBER_AT(Type, k); \
            npy_intp low = 0, high = found; \
            if (found == kernel->k) { \
                Type last = NUMBER_AT(Type, best[found - 1]); \
                if (!BEFORE(x, last, is_nan, down)) continue; \
                high = --found; \
            } \
            while (low < high) { \
                npy_intp middle = (low + high) / 2; \
                Type y = NUMBER_AT(Type, best[middle]); \
                if (BEFORE(x, y, is_nan, down)) high = middle; else low = middle + 1; \
            } \
            memmove(best + low + 1, best + low, (found - low) * sizeof *best); \
            best[low] = k; \
            found++; \
        } \
        for (npy_intp k = kernel->m; k < kernel->k; k++) *(int64_t *)(out + (k - kernel->m) * there) = best[k]; \
    }

#define OF_ROWS(ending, Type, Wide, is_nan) \
    BEST_OF(argmax_##ending, Type, is_nan, >) \
    BEST_OF(argmin_##ending, Type, is_nan, <) \
    RUNNING_OF(cumsum_##ending, Type, Wide, 0, +) \
    RUNNING_OF(cumprod_##ending, Type, Wide, 1, *) \
    MULTIPLIED(prod_##ending, Type, Wide) \
    ARRANGED_OF(ranked_##ending, Type, is_nan, false) \
    ARRANGED_OF(ranked_down_##ending, Type, is_nan, true) \
    RANKED_OF(ranked_##ending, Type, is_nan, false) \
    RANKED_OF(ranked_down_##ending, Type, is_nan, true)
OF_ROWS(single, float, double, isnan)
OF_ROWS(twice, double, double, isnan)
OF_ROWS(whole, int64_t, uint64_t, NEVER)

#define ROW_FUNCTION(name) {#name, name##_single, name##_twice, name##_whole}
static const struct { const char *name; Row_Function single, twice, whole; } row_functions[] = {
    ROW_FUNCTION(argmax), ROW_FUNCTION(argmin), ROW_FUNCTION(cumsum), ROW_FUNCTION(cumprod), ROW_FUNCTION(prod), ROW_FUNCTION(ranked), ROW_FUNCTION(ranked_down),
};

static Row_Function find_row_function(PyObject *name, int type) {
    for (size_t k = 0; k < sizeof row_functions / sizeof *row_functions; k++)
        if (PyUnicode_CompareWithASCIIString(name, row_functions[k].name) == 0)
            return type == NPY_FLOAT32 ? row_functions[k].single : type == NPY_FLOAT64 ? row_functions[k].twice
                : type == NPY_LONG ? row_functions[k].whole : NULL;
    return NULL;
}

static void each_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    for (npy_intp k = 0; k < count; k++) kernel->row(kernel, pointers[0] + k * step[0], kernel->rows[0][0], pointers[1] + k * step[1], kernel->rows[0][1]);
}

/* ------------------------------------------------------------------------------- a copy of the first operand that is written to */

#define PUT_THERE(Type) PLACED(Type, =)
#define PLACED(Type, sign) \
    for (npy_intp k = 0; k < count; k++) \
        *(Type *)(pointers[3] + k * step[3] + within(*(int64_t *)(pointers[1] + k * step[1]), kernel->n) * kernel->k) sign *(Type *)(pointers[2] + k * step[2]);

/* An element at the position along one dim that the index says, as `gather_row`. */
static void put_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    if (kernel->kind == PUT_ADD) {
        if (kernel->out_type == NPY_FLOAT32) { PLACED(float, +=) }
        else if (kernel->out_type == NPY_FLOAT64) { PLACED(double, +=) }
        else { PLACED(uint64_t, +=) }
    }
    else BY_SIZE(kernel->m, PUT_THERE)
}

/* A view that begins n bytes behind the first. */
static void update_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    copied(kernel->m, pointers[1], step[1], pointers[2] + kernel->n, step[2], count);
}

static void count_up(const Kernel *kernel, char *out) {
    for (npy_intp k = 0; k < kernel->numel; k++)
        if (kernel->out_type == NPY_LONG) ((int64_t *)out)[k] = k;
        else if (kernel->out_type == NPY_FLOAT32) ((float *)out)[k] = (float)k;
        else ((double *)out)[k] = (double)k;
}

/* As `random_bits_ref` of `ops/random.py`. */
static void draw(uint64_t key, uint64_t offset, npy_intp count, uint64_t *out) {
    key += 0x9E3779B97F4A7C15u;
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9u;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBu;
    key = (key ^ (key >> 31)) | 1;
    for (npy_intp k = 0; k < count; k++) {
        uint64_t y = (offset + (uint64_t)k) * key, z = y + key, x = y;
        x = x * x + y, x = x >> 32 | x << 32;
        x = x * x + z, x = x >> 32 | x << 32;
        x = x * x + y, x = x >> 32 | x << 32;
        uint64_t t = x * x + z;
        x = t >> 32 | t << 32;
        out[k] = t ^ ((x * x + y) >> 32);
    }
}

#define CALLED(Type, Int, Real, function) \
    ((Type)function)(ROW_MAJOR, a, b, (Int)kernel->m, (Int)kernel->n, (Int)kernel->k, (Real)1, (const Real *)pointers[0], (Int)lda, \
                     (const Real *)pointers[1], (Int)ldb, (Real)0, (Real *)pointers[2], (Int)kernel->n)

#define CALLED_COMPLEX(Type, function) \
    ((Type)function)(ROW_MAJOR, a, b, kernel->m, kernel->n, kernel->k, one, pointers[0], lda, pointers[1], ldb, zero, pointers[2], kernel->n)

/* The product of two matrices whose rows or columns lie side by side; `rows`: their strides in elements. */
static void product(const Kernel *kernel, char **pointers, npy_intp rows[][2]) {
    npy_intp lda = rows[0][0], ldb = rows[1][0];
    int a = PLAIN, b = PLAIN;
    if (kernel->m > 1 && rows[0][1] != 1) { a = TRANSPOSED; lda = rows[0][1]; }
    else if (kernel->m == 1 && rows[0][1] != 1) { a = TRANSPOSED; lda = rows[0][1]; }
    if (rows[1][1] != 1) { b = TRANSPOSED; ldb = rows[1][1]; }
    npy_intp least_a = a == PLAIN ? kernel->k : kernel->m, least_b = b == PLAIN ? kernel->n : kernel->k;
    if (lda < least_a) lda = least_a;
    if (ldb < least_b) ldb = least_b;
    if (PyTypeNum_ISCOMPLEX(kernel->out_type)) {
        static const float one_single[2] = {1}, none_single[2] = {0};
        static const double one_twice[2] = {1}, none_twice[2] = {0};
        bool narrow = kernel->out_type == NPY_CFLOAT;
        void *function = narrow ? blas.pairs : blas.wide_pairs;
        const void *one = narrow ? (const void *)one_single : one_twice, *zero = narrow ? (const void *)none_single : none_twice;
        if (blas.wide) CALLED_COMPLEX(Complex64, function); else CALLED_COMPLEX(Complex32, function);
    } else if (kernel->out_type == NPY_FLOAT32) {
        if (blas.wide) CALLED(Single64, int64_t, float, blas.single); else CALLED(Single32, int, float, blas.single);
    } else {
        if (blas.wide) CALLED(Double64, int64_t, double, blas.twice); else CALLED(Double32, int, double, blas.twice);
    }
}

/* Whether a matrix of these strides is one that `product` takes: rows or columns without gaps, and with one of a length of 1 any stride goes. */
static bool takes(npy_intp count, npy_intp length, npy_intp rows[2]) {
    if (length == 1) rows[1] = 1;
    if (rows[1] == 1) { if (count == 1) rows[0] = length; return rows[0] >= length; }
    if (count == 1) rows[0] = 1;
    return rows[0] == 1 && rows[1] >= count;
}

static void random_bits(const Kernel *kernel, char **pointers, uint64_t *out) {
    uint64_t seed, offset;
    memcpy(&seed, pointers[0], 8);
    memcpy(&offset, pointers[1], 8);
    draw(seed, offset, kernel->numel, out);
}

/* bits(seed, offset, count): as an array. */
PyObject *draw_bits(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *seed, *offset;
    npy_intp count;
    if (!PyArg_ParseTuple(args, "O!O!n", &PyLong_Type, &seed, &PyLong_Type, &offset, &count)) return NULL;
    PyObject *out = PyArray_SimpleNew(1, &count, NPY_INT64);
    if (out != NULL) draw(PyLong_AsUnsignedLongLongMask(seed), PyLong_AsUnsignedLongLongMask(offset), count, (uint64_t *)PyArray_DATA((PyArrayObject *)out));
    return out;
}

/* One product for every position of the dims before. */
static void product_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    npy_intp rows[2][2] = {{kernel->rows[0][0], kernel->rows[0][1]}, {kernel->rows[1][0], kernel->rows[1][1]}};
    for (npy_intp k = 0; k < count; k++) {
        char *here[3] = {pointers[0] + k * step[0], pointers[1] + k * step[1], pointers[2] + k * step[2]};
        product(kernel, here, rows);
    }
}

/* Numbers of single precision as double, and back; `parts`: of each, which lie side by side. */
#define SPREAD(name, From, To) \
    static void name(const char *in, npy_intp outer, npy_intp step, npy_intp count, npy_intp between, int parts, char *out, npy_intp around, npy_intp there) { \
        for (npy_intp j = 0; j < outer; j++) \
            if (between == parts * (npy_intp)sizeof(From) && there == parts * (npy_intp)sizeof(To)) { \
                const From *from = (const From *)(in + j * step); \
                To *to = (To *)(out + j * around); \
                for (npy_intp k = 0; k < count * parts; k++) to[k] = (To)from[k]; \
            } else for (npy_intp k = 0; k < count; k++) \
                for (int part = 0; part < parts; part++) \
                    ((To *)(out + j * around + k * there))[part] = (To)((const From *)(in + j * step + k * between))[part]; \
    }
SPREAD(widened, float, double)
SPREAD(narrowed, double, float)

/* A generalised loop for every position of the dims around the one that is transformed, without a factor: n numbers become k. In double precision, as
   NumPy does. */
static void transform_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    npy_intp sizes[3] = {count, kernel->n, kernel->k}, steps[5] = {step[0], 0, step[1], kernel->rows[0][0], kernel->rows[0][1]};
    double one = 1.0;
    if (types_are_wide(kernel->out_type)) {
        char *args[3] = {pointers[0], (char *)&one, pointers[1]};
        kernel->loop(args, sizes, steps, kernel->data);
        return;
    }
    int parts = PyTypeNum_ISCOMPLEX(kernel->types[0]) ? 2 : 1, made = PyTypeNum_ISCOMPLEX(kernel->out_type) ? 2 : 1;
    npy_intp from = 8 * parts, to = 8 * made, wide[5] = {from * kernel->n, 0, to * kernel->k, from, to};
    char *args[3] = {kernel->scratch, (char *)&one, kernel->scratch + count * wide[0]};
    widened(pointers[0], count, steps[0], kernel->n, steps[3], parts, args[0], wide[0], from);
    kernel->loop(args, sizes, wide, kernel->data);
    narrowed(args[2], count, wide[2], kernel->k, to, made, pointers[1], steps[2], steps[4]);
}

/* And what it gave times the factor, if there is one. */
static bool transform(Kernel *kernel, char **pointers, char *out) {
    if (!types_are_wide(kernel->out_type)) {
        kernel->scratch = PyMem_Malloc(16 * kernel->dims[kernel->ndim - 1] * (kernel->n + kernel->k));
        if (kernel->scratch == NULL) return false;
    }
    every_row(kernel, pointers, transform_row);
    PyMem_Free(kernel->scratch);
    kernel->scratch = NULL;
    if (kernel->second == NULL) return true;
    npy_intp size = PyTypeNum_ISCOMPLEX(kernel->out_type) ? 8 : 4, count = kernel->numel;
    if (types_are_wide(kernel->out_type)) size *= 2;
    npy_intp steps[3] = {size, 0, size};
    char *args[3] = {out, kernel->start, out};
    kernel->second(args, &count, steps, kernel->second_data);
    return true;
}

/* A kernel of float32 on operands of 16 bits, of each of which the elements from its first to its last are taken (`rows`). */
static bool in_single(Kernel *kernel, char **pointers, char *out) {
    npy_intp total = is_narrow(kernel->out_type) ? kernel->numel : 0;
    for (int k = 0; k < kernel->inputs; k++) total += is_narrow(kernel->types[k]) ? kernel->rows[k][0] : 0;
    float few[1024], *scratch = total <= 1024 ? few : PyMem_Malloc(total * sizeof(float)), *next = scratch;
    if (scratch == NULL) return false;
    char *given[MOST_INPUTS + 1];
    for (int k = 0; k < kernel->inputs; k++) {
        given[k] = pointers[k];
        if (!is_narrow(kernel->types[k])) continue;
        widen(kernel->types[k], pointers[k], next, kernel->rows[k][0]);
        given[k] = (char *)next;
        next += kernel->rows[k][0];
    }
    bool ok = run_kernel(kernel->inner, given, is_narrow(kernel->out_type) ? (char *)next : out);
    if (ok && is_narrow(kernel->out_type)) narrow(kernel->out_type, next, out, kernel->numel);
    if (scratch != few) PyMem_Free(scratch);
    return ok;
}

bool run_kernel(Kernel *kernel, char **pointers, char *out) {
    pointers[kernel->inputs] = out;
    if (kernel->kind == SUM) return sum(kernel, pointers, (float *)out);
    if (kernel->kind == REDUCE) {
        for (npy_intp k = 0; k < kernel->numel; k++)
            memcpy(out + k * kernel->k, kernel->start, kernel->k);
        every_row(kernel, pointers, reduce_row);
        return true;
    }
    switch (kernel->kind) {
        case ELEMENTWISE: every_row(kernel, pointers, loop_row); break;
        case RELU: every_row(kernel, pointers, relu_row); break;
        case SIGMOID: every_row(kernel, pointers, sigmoid_row); break;
        case COPY: every_row(kernel, pointers, copy_row); break;
        case WHERE: every_row(kernel, pointers, where_row); break;
        case CAST: every_row(kernel, pointers, cast_row); break;
        case GATHER: every_row(kernel, pointers, gather_row); break;
        case BATCH: every_row(kernel, pointers, product_row); break;
        case LOOKUP: lookup(kernel, pointers, out); break;
        case JOIN: join(kernel, pointers, out); break;
        case ROWS:
            if (kernel->k > MOST_RANKS && (kernel->scratch = PyMem_Malloc(16 * kernel->n)) == NULL) return false;
            every_row(kernel, pointers, each_row);
            PyMem_Free(kernel->scratch);
            kernel->scratch = NULL;
            break;
        case UPDATE: case PUT: case PUT_ADD:
            memcpy(out, pointers[0], kernel->sizes[0] * kernel->m);
            every_row(kernel, pointers, kernel->kind == UPDATE ? update_row : put_row);
            break;
        case PARTS: every_row(kernel, pointers, complex_row); break;
        case IN_SINGLE: return in_single(kernel, pointers, out);
        case TRANSFORM: return transform(kernel, pointers, out);
        case COUNT: count_up(kernel, out); break;
        case RANDOM: random_bits(kernel, pointers, (uint64_t *)out); break;
        default: product(kernel, pointers, kernel->rows);
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------- as a function of arrays */

static PyObject *call(PyObject *self, PyObject *const *args, size_t given, PyObject *names) {
    Kernel *kernel = (Kernel *)self;
    Py_ssize_t count = PyVectorcall_NARGS(given);
    char *pointers[MOST_INPUTS + 1];
    double numbers[MOST_INPUTS][2];
    npy_intp rows[MOST_INPUTS][2];
    PyObject *copies[MOST_INPUTS] = {NULL}, *out = NULL;
    bool fits = count == kernel->inputs && names == NULL;
    for (Py_ssize_t k = 0; fits && k < count; k++) {
        PyObject *x = args[k];
        if (PyArray_CheckExact(x)) {
            PyArrayObject *array = (PyArrayObject *)x;
            pointers[k] = PyArray_BYTES(array);
            fits = PyArray_TYPE(array) == kernel->types[k] && PyArray_SIZE(array) == kernel->sizes[k] && PyArray_ISALIGNED(array);
            if (kernel->kind == PRODUCT) {
                fits = fits && PyArray_NDIM(array) == 2;
                for (int d = 0; fits && d < 2; d++) rows[k][d] = PyArray_STRIDE(array, d) / PyArray_ITEMSIZE(array);
                fits = fits && (k == 0 ? takes(kernel->m, kernel->k, rows[0]) : takes(kernel->k, kernel->n, rows[1]));
            } else if (fits && !PyArray_IS_C_CONTIGUOUS(array)) {
                copies[k] = kernel->upright >> k & 1 ? PyArray_NewCopy(array, NPY_CORDER) : NULL;
                fits = copies[k] != NULL;
                if (fits) pointers[k] = PyArray_BYTES((PyArrayObject *)copies[k]);
            }
        } else if (kernel->sizes[k] == 1 && (PyFloat_CheckExact(x) || PyLong_CheckExact(x) || PyBool_Check(x) || PyComplex_CheckExact(x))) {
            pointers[k] = (char *)numbers[k];
            fits = any_number_at(x, kernel->types[k], pointers[k]);
        } else
            fits = false;
    }
    if (!fits)
        out = PyErr_Occurred() ? NULL : PyObject_Vectorcall(kernel->function, args, given, names);
    else if ((out = PyArray_SimpleNew(kernel->out_ndim, kernel->out_dims, kernel->out_type)) != NULL) {
        if (kernel->kind == PRODUCT) {
            pointers[2] = PyArray_BYTES((PyArrayObject *)out);
            product(kernel, pointers, rows);
        } else if (!run_kernel(kernel, pointers, PyArray_BYTES((PyArrayObject *)out))) {
            Py_CLEAR(out);
            PyErr_NoMemory();
        }
    }
    for (Py_ssize_t k = 0; k < MOST_INPUTS; k++) Py_XDECREF(copies[k]);
    return out;
}

static bool intps(PyObject *tuple, npy_intp *into, Py_ssize_t most, Py_ssize_t *count) {
    *count = PyTuple_Size(tuple);
    if (*count < 0 || *count > most) return false;
    for (Py_ssize_t k = 0; k < *count; k++) {
        into[k] = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, k));
        if (into[k] == -1 && PyErr_Occurred()) return false;
    }
    return true;
}

/* What NumPy has no loops for, or others: `sign` has another one for NaN, `remainder` and `floor_divide` warn and branch. */
#define LOOP_OF(name, Type, expression) \
    static void name(char **args, const npy_intp *count, const npy_intp *steps, void *data) { \
        (void)data; \
        for (npy_intp k = 0; k < *count; k++) { \
            Type x = *(Type *)(args[0] + k * steps[0]); \
            *(Type *)(args[1] + k * steps[1]) = (Type)(expression); \
        } \
    }
#define LOOP_OF_TWO(name, Type, function) \
    static void name(char **args, const npy_intp *count, const npy_intp *steps, void *data) { \
        (void)data; \
        for (npy_intp k = 0; k < *count; k++) \
            *(Type *)(args[2] + k * steps[2]) = function(*(Type *)(args[0] + k * steps[0]), *(Type *)(args[1] + k * steps[1])); \
    }
LOOP_OF(erf_single, float, erff(x))
LOOP_OF(erf_double, double, erf(x))
LOOP_OF(lgamma_single, float, lgamma((double)x))
LOOP_OF(lgamma_double, double, lgamma(x))

#define PI 3.141592653589793
/* As `digamma_scalar` in `calque/ops/special.py`: recurrence up to 12, then the asymptotic series. */
static double digamma_of(double x) {
    static const double series[] = {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760, 1.0 / 12, -3617.0 / 8160};
    if (x == 0) return copysign(INFINITY, -x);
    if (x < 0) return isinf(x) || x == floor(x) ? NAN : digamma_of(1 - x) - PI / tan(PI * (x - rint(x)));
    double total = 0, tail = 0;
    for (; x < 12; x += 1) total -= 1 / x;
    if (isnan(x) || isinf(x)) return x;
    double square = 1 / x / x;
    for (int k = 7; k >= 0; k--) tail = (tail + series[k]) * square;
    return total + log(x) - 0.5 / x - tail;
}
LOOP_OF(digamma_single, float, digamma_of(x))
LOOP_OF(digamma_double, double, digamma_of(x))
LOOP_OF(rsqrt_single, float, 1.0f / sqrtf(x)) /* the definition, and what compiled programs compute: a more exact one would differ between them */
LOOP_OF(rsqrt_double, double, 1.0 / sqrt(x))
LOOP_OF(sign_single, float, (x > 0) - (x < 0))
LOOP_OF(sign_double, double, (x > 0) - (x < 0))

#define DIVISIONS_OF(ending, Type, fmod, rint, copysign) \
    static inline Type remainder_of_##ending(Type x, Type y) { \
        Type rest = fmod(x, y); \
        return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest; \
    } \
    static inline Type quotient_of_##ending(Type x, Type y) { \
        if (y == 0) return x / y; \
        Type rest = fmod(x, y), quotient = rint((x - rest) / y) - (rest != 0 && (rest < 0) != (y < 0)); \
        return quotient == 0 ? copysign((Type)0, x / y) : quotient; \
    } \
    LOOP_OF_TWO(remainder_##ending, Type, remainder_of_##ending) \
    LOOP_OF_TWO(floor_divide_##ending, Type, quotient_of_##ending)
DIVISIONS_OF(single, float, fmodf, rintf, copysignf)
DIVISIONS_OF(double, double, fmod, rint, copysign)

/* Of integers a division by 0 gives 0. */
static inline int64_t quotient_of_whole(int64_t x, int64_t y) {
    if (y == 0) return 0;
    if (y == -1) return (int64_t)(0 - (uint64_t)x);
    int64_t quotient = x / y;
    return quotient - (x % y != 0 && (x < 0) != (y < 0));
}
static inline int64_t remainder_of_whole(int64_t x, int64_t y) {
    if (y == 0 || y == -1) return 0;
    int64_t rest = x % y;
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
LOOP_OF_TWO(remainder_whole, int64_t, remainder_of_whole)
LOOP_OF_TWO(floor_divide_whole, int64_t, quotient_of_whole)

#define OWN_LOOPS(name, inputs, whole) \
    {#name, inputs, {(PyUFuncGenericFunction)name##_single, (PyUFuncGenericFunction)name##_double, (PyUFuncGenericFunction)whole}}
static const char own_types[] = {NPY_FLOAT32, NPY_FLOAT32, NPY_FLOAT64, NPY_FLOAT64};
static const char own_types_of_two[] = {NPY_FLOAT32, NPY_FLOAT32, NPY_FLOAT32, NPY_FLOAT64, NPY_FLOAT64, NPY_FLOAT64, NPY_INT64, NPY_INT64, NPY_INT64};
static void *own_data[3];
static struct { const char *name; int inputs; PyUFuncGenericFunction loops[3]; } own_loops[] = {  /* of float32, float64, int64 */
    OWN_LOOPS(erf, 1, NULL), OWN_LOOPS(lgamma, 1, NULL), OWN_LOOPS(digamma, 1, NULL), OWN_LOOPS(rsqrt, 1, NULL), OWN_LOOPS(sign, 1, NULL),
    OWN_LOOPS(remainder, 2, remainder_whole), OWN_LOOPS(floor_divide, 2, floor_divide_whole),
};

/* ufuncs(): functions of NumPy's kind with these loops, by their names. */
PyObject *own_ufuncs(PyObject *module, PyObject *none) {
    (void)module;
    (void)none;
    PyObject *found = PyDict_New();
    for (size_t k = 0; found != NULL && k < sizeof own_loops / sizeof *own_loops; k++) {
        bool two = own_loops[k].inputs == 2;
        PyObject *ufunc = PyUFunc_FromFuncAndData(own_loops[k].loops, own_data, (char *)(two ? own_types_of_two : own_types), two ? 3 : 2,
                                                  own_loops[k].inputs, 1, PyUFunc_None, own_loops[k].name, "A primitive of Calque.", 0);
        if (ufunc == NULL || PyDict_SetItemString(found, own_loops[k].name, ufunc) < 0) Py_CLEAR(found);
        Py_XDECREF(ufunc);
    }
    return found;
}

bool find_loop(PyObject *function, const int *types, int count, PyUFuncGenericFunction *loop, void **data) {
    PyUFuncObject *ufunc = (PyUFuncObject *)function;
    if (!PyObject_TypeCheck(function, &PyUFunc_Type) || ufunc->nargs != count) return false;
    for (int k = 0; k < ufunc->ntypes; k++) {
        bool same = true;
        for (int j = 0; j < count; j++) same = same && ufunc->types[k * count + j] == types[j];
        if (same) { *loop = ufunc->functions[k]; *data = ufunc->data == NULL ? NULL : ufunc->data[k]; return *loop != NULL; }
    }
    return false;
}

/* Kernel(kind, large, upright, function, layout, memory, shape, sizes, types, out_type, dims, steps, extents, rows, ufuncs, start) */
static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *names) {
    (void)names;
    int kind, large, upright, out_type;
    PyObject *function, *layout, *memory, *shape, *dims, *steps, *sizes, *types, *extents, *rows, *ufuncs, *start;
    if (!PyArg_ParseTuple(args, "ipiOOOO!O!O!iO!O!O!O!O!O", &kind, &large, &upright, &function, &layout, &memory, &PyTuple_Type, &shape, &PyTuple_Type, &sizes,
                          &PyTuple_Type, &types, &out_type, &PyTuple_Type, &dims, &PyTuple_Type, &steps, &PyTuple_Type, &extents, &PyTuple_Type, &rows,
                          &PyTuple_Type, &ufuncs, &start))
        return NULL;
    Kernel *kernel = (Kernel *)type->tp_alloc(type, 0);
    if (kernel == NULL) return NULL;
    kernel->vectorcall = call;
    kernel->function = Py_NewRef(function);
    kernel->layout = Py_NewRef(layout);
    kernel->memory = Py_NewRef(memory);
    kernel->kind = kind;
    kernel->large = large;
    kernel->upright = upright;
    kernel->out_type = out_type;
    Py_ssize_t count = 0, inputs = PyTuple_GET_SIZE(types), ndim = 0, given = PyTuple_GET_SIZE(rows);
    npy_intp sizes_of[3] = {0};
    bool ok = inputs <= MOST_INPUTS && intps(sizes, kernel->sizes, MOST_INPUTS, &count) && intps(shape, kernel->out_dims, MOST_DIMS, &count);
    kernel->inputs = (int)inputs;
    kernel->out_ndim = (int)count;
    kernel->numel = 1;
    for (Py_ssize_t k = 0; ok && k < count; k++) kernel->numel *= kernel->out_dims[k];
    for (Py_ssize_t k = 0; ok && k < inputs; k++) kernel->types[k] = (int)PyLong_AsLong(PyTuple_GET_ITEM(types, k));
    ok = ok && intps(extents, sizes_of, 3, &count) && given <= inputs;
    kernel->m = sizes_of[0];
    kernel->n = sizes_of[1];
    kernel->k = sizes_of[2];
    for (Py_ssize_t k = 0; ok && k < given; k++) ok = intps(PyTuple_GET_ITEM(rows, k), kernel->rows[k], 2, &count);
    if (ok && (kind == PRODUCT || kind == BATCH))
        ok = given == 2 && blas.single != NULL && (!PyTypeNum_ISCOMPLEX(out_type) || (blas.pairs != NULL && blas.wide_pairs != NULL)) && takes(kernel->m, kernel->k, kernel->rows[0]) && takes(kernel->k, kernel->n, kernel->rows[1]);
    ok = ok && intps(dims, kernel->dims, MOST_DIMS, &ndim) && PyTuple_GET_SIZE(steps) == ndim;
    kernel->ndim = (int)ndim;
    for (Py_ssize_t d = 0; ok && d < ndim; d++)
        ok = intps(PyTuple_GET_ITEM(steps, d), kernel->steps[d], MOST_INPUTS + 1, &count) && count == inputs + 1;
    PyObject *ufunc = PyTuple_GET_SIZE(ufuncs) ? PyTuple_GET_ITEM(ufuncs, 0) : NULL;
    int wanted[4] = {0};
    for (int k = 0; k < kernel->inputs; k++) wanted[k] = kernel->types[k];
    if (kind == RELU || kind == REDUCE) { wanted[1] = wanted[2] = wanted[0]; ok = ok && find_loop(ufunc, wanted, 3, &kernel->loop, &kernel->data); }
    if (kind == IN_SINGLE) {
        ok = ok && given == inputs && ufunc != NULL && Py_IS_TYPE(ufunc, &Kernel_Type) && ((Kernel *)ufunc)->inputs == kernel->inputs;
        if (ok) kernel->inner = (Kernel *)Py_NewRef(ufunc);
    }
    if (kind == REDUCE) ok = ok && any_number_at(start, out_type, kernel->start);
    if (kind == TRANSFORM) {
        int numbers[3] = {out_type, out_type, out_type};
        wanted[0] = PyTypeNum_ISCOMPLEX(kernel->types[0]) ? NPY_CDOUBLE : NPY_FLOAT64;
        wanted[1] = NPY_FLOAT64;
        wanted[2] = PyTypeNum_ISCOMPLEX(out_type) ? NPY_CDOUBLE : NPY_FLOAT64;
        ok = ok && given == 1 && PyTuple_GET_SIZE(ufuncs) == 2 && find_loop(ufunc, wanted, 3, &kernel->loop, &kernel->data);
        if (ok && start != Py_None)
            ok = any_number_at(start, out_type, kernel->start) && find_loop(PyTuple_GET_ITEM(ufuncs, 1), numbers, 3, &kernel->second, &kernel->second_data);
    }
    if (kind == ROWS) ok = ok && ufunc != NULL && (kernel->row = find_row_function(ufunc, kernel->types[0])) != NULL;
    if (kind == SIGMOID) {
        wanted[1] = wanted[0];
        ok = ok && find_loop(ufunc, wanted, 2, &kernel->loop, &kernel->data)
            && find_loop(PyTuple_GET_ITEM(ufuncs, 1), wanted, 2, &kernel->second, &kernel->second_data);
    }
    if (kind == ELEMENTWISE) {
        wanted[inputs] = out_type;
        ok = ok && find_loop(ufunc, wanted, (int)inputs + 1, &kernel->loop, &kernel->data);
    }
    if (!ok) {
        Py_DECREF(kernel);
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "no kernel for this operation");
        return NULL;
    }
    return (PyObject *)kernel;
}

static void destroy(PyObject *self) {
    Kernel *kernel = (Kernel *)self;
    for (int k = 0; k < PLACES; k++) { Py_XDECREF(kernel->places[k].code); Py_XDECREF(kernel->places[k].edge); }
    Py_XDECREF(kernel->function);
    Py_XDECREF(kernel->layout);
    Py_XDECREF(kernel->memory);
    Py_XDECREF(kernel->inner);
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject Kernel_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "calque._hot.Kernel",
    .tp_doc = "One small operation on arrays of certain layouts.",
    .tp_basicsize = sizeof(Kernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Kernel, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = create,
    .tp_dealloc = destroy,
};
