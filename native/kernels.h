/* Small operations on arrays: loops of NumPy, products of the BLAS, over a nest that was worked out once. */
#ifndef CALQUE_KERNELS_H
#define CALQUE_KERNELS_H

#include "handles.h"
#ifndef CALQUE_MAIN
#define NO_IMPORT_ARRAY
#define NO_IMPORT_UFUNC
#endif
#define PY_ARRAY_UNIQUE_SYMBOL calque_array
#define PY_UFUNC_UNIQUE_SYMBOL calque_ufunc
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/ufuncobject.h>

#define MOST_INPUTS 3
#define MOST_DIMS 8
#define PLACES 4
#define MOST_RANKS 64

enum { ELEMENTWISE, SIGMOID, RELU, REDUCE, PRODUCT, COPY, WHERE, SUM, CAST, RANDOM, LOOKUP, GATHER, JOIN, ROWS, COUNT, BATCH, UPDATE, PUT, PUT_ADD, PARTS, TRANSFORM, IN_SINGLE };

typedef struct { PyObject *code, *edge; int position; } Place;

/* What becomes of one row: `in`, `out` and the steps of both. */
typedef struct Kernel Kernel;
typedef void (*Row_Function)(const Kernel *, const char *, npy_intp, char *, npy_intp);

/* One operation on operands of certain layouts. `steps` are in bytes; those of the result stand behind those of the inputs. */
struct Kernel {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int kind, inputs, ndim, next_place, out_ndim;
    bool large; /* see `run/estimate.py` */
    int upright; /* bit k: it was worked out for an operand k that is row-major */
    npy_intp dims[MOST_DIMS], steps[MOST_DIMS][MOST_INPUTS + 1], sizes[MOST_INPUTS], rows[MOST_INPUTS][2];
    npy_intp numel, out_dims[MOST_DIMS], m, n, k; /* m, n, k: extents of a product; of other kinds see `small.py` */
    int types[MOST_INPUTS], out_type;
    char start[16]; /* of a reduction; the factor of a transform */
    PyUFuncGenericFunction loop, second;
    Row_Function row;
    void *data, *second_data;
    char *scratch; /* of one run */
    PyObject *function; /* the same by a routine of Python's */
    PyObject *layout, *memory; /* how the result is seen, and as which value it lies in memory */
    Kernel *inner; /* the same in float32 */
    Place places[PLACES];
};

extern PyTypeObject Kernel_Type;

/* The loop of a ufunc for operands of these types; false if there is none. */
bool find_loop(PyObject *function, const int *types, int count, PyUFuncGenericFunction *loop, void **data);

/* False: no memory. No operand is empty. */
bool run_kernel(Kernel *kernel, char **pointers, char *out);
PyArrayObject *memory_in(PyObject *storage); /* or NULL */
PyArrayObject *memory_of(PyObject *t); /* of a tensor's storage, or NULL */
bool number_at(PyObject *number, int type, char *where); /* of at most 8 bytes */
bool any_number_at(PyObject *number, int type, char *where); /* of 16, too */
char *element_of(PyArrayObject *array, int type, npy_intp offset); /* in elements of `type`, as which a view may show the memory; or NULL */
PyObject *shown_from(PyArrayObject *flat, PyObject *layout, npy_intp first); /* beginning at another element than the layout says */
PyObject *shown(PyArrayObject *flat, PyObject *layout); /* a view of memory under a layout; NULL without an error where types differ or there is nothing */
bool is_narrow(int type); /* a float of 16 bits */
void widen(int type, const char *from, float *out, npy_intp count);
void narrow(int type, const float *in, char *to, npy_intp count);
PyObject *set_bfloat16(PyObject *module, PyObject *number);
PyObject *set_blas(PyObject *module, PyObject *args);
PyObject *draw_bits(PyObject *module, PyObject *args);
PyObject *own_ufuncs(PyObject *module, PyObject *none);

#endif
