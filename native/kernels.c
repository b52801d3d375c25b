/* The kernels of operations that are computed at once. They hold no memory of their own and may run in any thread that has the interpreter. */
#include "kernels.h"
#include <math.h>
#include <string.h>

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
#define PRODUCT_OF(name, Int, Real) \
    typedef void (*name)(int, int, int, Int, Int, Int, Real, const Real *, Int, const Real *, Int, Real, Real *, Int);
PRODUCT_OF(Single64, int64_t, float)
PRODUCT_OF(Double64, int64_t, double)
PRODUCT_OF(Single32, int, float)
PRODUCT_OF(Double32, int, double)

static struct { void *single, *twice; bool wide; } blas;

/* set_blas(address of sgemm, of dgemm, whether its integers have 64 bits) */
PyObject *set_blas(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long single, twice;
    int wide;
    if (!PyArg_ParseTuple(args, "KKp", &single, &twice, &wide)) return NULL;
    blas.single = (void *)single;
    blas.twice = (void *)twice;
    blas.wide = wide;
    Py_RETURN_NONE;
}

bool number_at(PyObject *number, int type, char *where) {
    double value = PyFloat_AsDouble(number);
    if (value == -1.0 && PyErr_Occurred()) return false;
    if (type == NPY_FLOAT32) { float narrow = (float)value; memcpy(where, &narrow, 4); }
    else memcpy(where, &value, 8);
    return true;
}

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

/* The sum in `wide` of as many numbers as the result has, rounded once; its steps are those of float64. */
static bool sum(Kernel *kernel, char **pointers, float *out) {
    double few[64], *wide = kernel->numel <= 64 ? few : PyMem_Malloc(kernel->numel * sizeof(double));
    if (wide == NULL) return false;
    for (npy_intp k = 0; k < kernel->numel; k++) wide[k] = 0.0;
    pointers[1] = (char *)wide;
    every_row(kernel, pointers, sum_row);
    for (npy_intp k = 0; k < kernel->numel; k++) out[k] = (float)wide[k];
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
    for (npy_intp k = 0; k < count; k++) *(Type *)(pointers[1] + k * step[1]) = *(Type *)(pointers[0] + k * step[0]);

static void copy_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    npy_intp size = kernel->sizes[2];
    if (step[0] == size && step[1] == size) memcpy(pointers[1], pointers[0], count * size);
    else if (size == 4) { COPIED(uint32_t) }
    else if (size == 8) { COPIED(uint64_t) }
    else if (size == 2) { COPIED(uint16_t) }
    else { COPIED(uint8_t) }
}

#define CHOSEN(Type) \
    for (npy_intp k = 0; k < count; k++) \
        *(Type *)(pointers[3] + k * step[3]) \
            = *(uint8_t *)(pointers[0] + k * step[0]) ? *(Type *)(pointers[1] + k * step[1]) : *(Type *)(pointers[2] + k * step[2]);

static void where_row(const Kernel *kernel, char **pointers, npy_intp count) {
    const npy_intp *step = kernel->steps[kernel->ndim - 1];
    if (kernel->out_type == NPY_FLOAT32) { CHOSEN(uint32_t) }
    else { CHOSEN(uint64_t) }
}

#define CALLED(Type, Int, Real, function) \
    ((Type)function)(ROW_MAJOR, a, b, (Int)kernel->m, (Int)kernel->n, (Int)kernel->k, (Real)1, (const Real *)pointers[0], (Int)lda, \
                     (const Real *)pointers[1], (Int)ldb, (Real)0, (Real *)pointers[2], (Int)kernel->n)

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
    if (kernel->out_type == NPY_FLOAT32) {
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

bool run_kernel(Kernel *kernel, char **pointers, char *out) {
    pointers[kernel->inputs] = out;
    if (kernel->kind == SUM) return sum(kernel, pointers, (float *)out);
    if (kernel->kind == REDUCE) {
        for (npy_intp k = 0; k < kernel->numel; k++)
            if (kernel->out_type == NPY_FLOAT32) ((float *)out)[k] = (float)kernel->start; else ((double *)out)[k] = kernel->start;
        every_row(kernel, pointers, reduce_row);
        return true;
    }
    switch (kernel->kind) {
        case ELEMENTWISE: every_row(kernel, pointers, loop_row); break;
        case RELU: every_row(kernel, pointers, relu_row); break;
        case SIGMOID: every_row(kernel, pointers, sigmoid_row); break;
        case COPY: every_row(kernel, pointers, copy_row); break;
        case WHERE: every_row(kernel, pointers, where_row); break;
        default: product(kernel, pointers, kernel->rows);
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------- as a function of arrays */

static PyObject *call(PyObject *self, PyObject *const *args, size_t given, PyObject *names) {
    Kernel *kernel = (Kernel *)self;
    Py_ssize_t count = PyVectorcall_NARGS(given);
    char *pointers[MOST_INPUTS + 1];
    double numbers[MOST_INPUTS];
    npy_intp rows[MOST_INPUTS][2];
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
            } else
                fits = fits && PyArray_IS_C_CONTIGUOUS(array);
        } else if (kernel->sizes[k] == 1 && (PyFloat_CheckExact(x) || PyLong_CheckExact(x)) && kernel->kind == ELEMENTWISE) {
            pointers[k] = (char *)&numbers[k];
            if (!number_at(x, kernel->types[k], pointers[k])) return NULL;
        } else
            fits = false;
    }
    if (!fits) return PyObject_Vectorcall(kernel->function, args, given, names);
    PyObject *out = PyArray_SimpleNew(kernel->out_ndim, kernel->out_dims, kernel->out_type);
    if (out == NULL) return NULL;
    if (kernel->kind == PRODUCT) {
        pointers[2] = PyArray_BYTES((PyArrayObject *)out);
        product(kernel, pointers, rows);
    } else if (!run_kernel(kernel, pointers, PyArray_BYTES((PyArrayObject *)out))) {
        Py_DECREF(out);
        return PyErr_NoMemory();
    }
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

/* The loop of a ufunc for operands of these types. */
static bool find_loop(PyObject *function, const int *types, int count, PyUFuncGenericFunction *loop, void **data) {
    PyUFuncObject *ufunc = (PyUFuncObject *)function;
    if (!PyObject_TypeCheck(function, &PyUFunc_Type) || ufunc->nargs != count) return false;
    for (int k = 0; k < ufunc->ntypes; k++) {
        bool same = true;
        for (int j = 0; j < count; j++) same = same && ufunc->types[k * count + j] == types[j];
        if (same) { *loop = ufunc->functions[k]; *data = ufunc->data[k]; return *loop != NULL; }
    }
    return false;
}

/* Kernel(kind, large, function, layout, memory, shape, dims, steps, sizes, types, out_type, [ufunc, [second ufunc, [start]]]) */
static PyObject *create(PyTypeObject *type, PyObject *args, PyObject *names) {
    (void)names;
    int kind, large, out_type;
    PyObject *function, *layout, *memory, *shape, *dims, *steps, *sizes, *types, *ufunc = NULL, *second = NULL;
    double start = 0.0;
    if (!PyArg_ParseTuple(args, "ipOOOO!O!O!O!O!i|OOd", &kind, &large, &function, &layout, &memory, &PyTuple_Type, &shape, &PyTuple_Type, &dims, &PyTuple_Type,
                          &steps, &PyTuple_Type, &sizes, &PyTuple_Type, &types, &out_type, &ufunc, &second, &start))
        return NULL;
    Kernel *kernel = (Kernel *)type->tp_alloc(type, 0);
    if (kernel == NULL) return NULL;
    kernel->vectorcall = call;
    kernel->function = Py_NewRef(function);
    kernel->layout = Py_NewRef(layout);
    kernel->memory = Py_NewRef(memory);
    kernel->kind = kind;
    kernel->large = large;
    kernel->out_type = out_type;
    kernel->start = start;
    Py_ssize_t count = 0, inputs = PyTuple_GET_SIZE(types), ndim = 0;
    bool ok = inputs <= MOST_INPUTS && intps(sizes, kernel->sizes, MOST_INPUTS, &count) && intps(shape, kernel->out_dims, MOST_DIMS, &count);
    kernel->inputs = (int)inputs;
    kernel->out_ndim = (int)count;
    kernel->numel = 1;
    for (Py_ssize_t k = 0; ok && k < count; k++) kernel->numel *= kernel->out_dims[k];
    for (Py_ssize_t k = 0; ok && k < inputs; k++) kernel->types[k] = (int)PyLong_AsLong(PyTuple_GET_ITEM(types, k));
    if (ok && kind == PRODUCT) {
        npy_intp sizes_of[3];
        ok = intps(dims, sizes_of, 3, &count) && count == 3 && PyTuple_GET_SIZE(steps) == 2 && blas.single != NULL;
        if (ok) { kernel->m = sizes_of[0]; kernel->n = sizes_of[1]; kernel->k = sizes_of[2]; }
        for (int k = 0; ok && k < 2; k++) ok = intps(PyTuple_GET_ITEM(steps, k), kernel->rows[k], 2, &count) && count == 2;
        ok = ok && takes(kernel->m, kernel->k, kernel->rows[0]) && takes(kernel->k, kernel->n, kernel->rows[1]);
    } else if (ok) {
        ok = intps(dims, kernel->dims, MOST_DIMS, &ndim) && ndim > 0 && PyTuple_GET_SIZE(steps) == ndim;
        kernel->ndim = (int)ndim;
        for (Py_ssize_t d = 0; ok && d < ndim; d++)
            ok = intps(PyTuple_GET_ITEM(steps, d), kernel->steps[d], MOST_INPUTS + 1, &count) && count == inputs + 1;
    }
    int wanted[4] = {0};
    for (int k = 0; k < kernel->inputs; k++) wanted[k] = kernel->types[k];
    if (kind == RELU || kind == REDUCE) { wanted[1] = wanted[2] = wanted[0]; ok = ok && find_loop(ufunc, wanted, 3, &kernel->loop, &kernel->data); }
    if (kind == SIGMOID) {
        wanted[1] = wanted[0];
        ok = ok && find_loop(ufunc, wanted, 2, &kernel->loop, &kernel->data) && find_loop(second, wanted, 2, &kernel->second, &kernel->second_data);
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
