/* Arithmetic on sizes: what `Guarded` in `calque/ir/symint.py` has recorded, on machine words in place of Python's numbers. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

typedef union { long long i; double f; } Word;
/* As `OPERATIONS` in Python, and the flags of an operand that is a float. */
enum { ADD, SUB, MUL, FLOORDIV, MOD, TRUEDIV, MAX, LT, LE, GT, GE, EQ, NE, OPERATION = 15, LEFT_FLOAT = 16, RIGHT_FLOAT = 32 };
#define EXACT (1LL << 53) /* integers up to here are floats of the same value */

/* Of `x` and `y`, whichever type they have. */
#define COMPARISONS \
    case LT: out->i = x < y; return true; \
    case LE: out->i = x <= y; return true; \
    case GT: out->i = x > y; return true; \
    case GE: out->i = x >= y; return true; \
    case EQ: out->i = x == y; return true; \
    case NE: out->i = x != y; return true;

/* An operand as a float. False: it is too large for that to be exact. */
static bool as_float(Word x, bool is_float, double *value) {
    *value = is_float ? x.f : (double)x.i;
    return is_float || (x.i <= EXACT && x.i >= -EXACT);
}

static bool on_floats(int kind, Word a, Word b, Word *out) {
    double x, y;
    if (!as_float(a, kind & LEFT_FLOAT, &x) || !as_float(b, kind & RIGHT_FLOAT, &y)) return false;
    switch (kind & OPERATION) {
        case ADD: out->f = x + y; return true;
        case SUB: out->f = x - y; return true;
        case MUL: out->f = x * y; return true;
        case TRUEDIV: out->f = x / y; return y != 0;
        COMPARISONS
    }
    return false;
}

/* One operation as Python defines it. False: the result is no word, or an error. */
static bool computed(int kind, Word a, Word b, Word *out) {
    long long x = a.i, y = b.i;
    if (kind > OPERATION || kind == TRUEDIV) return on_floats(kind, a, b, out);
    switch (kind) {
        case ADD: return !__builtin_add_overflow(x, y, &out->i);
        case SUB: return !__builtin_sub_overflow(x, y, &out->i);
        case MUL: return !__builtin_mul_overflow(x, y, &out->i);
        case FLOORDIV:
            if (y == 0 || (x == INT64_MIN && y == -1)) return false;
            out->i = x / y - (x % y != 0 && (x < 0) != (y < 0));
            return true;
        case MOD:
            if (y == 0 || (x == INT64_MIN && y == -1)) return false;
            out->i = x % y + (x % y != 0 && (x < 0) != (y < 0) ? y : 0);
            return true;
        case MAX: out->i = x < y ? y : x; return true;
        COMPARISONS
    }
    return false;
}

static bool given(PyObject *values, Word *words) {
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(values); k++) {
        PyObject *value = PyList_GET_ITEM(values, k);
        int overflow = 0;
        if (PyFloat_CheckExact(value)) words[k].f = PyFloat_AS_DOUBLE(value);
        else if (PyLong_Check(value)) words[k].i = PyLong_AsLongLongAndOverflow(value, &overflow);
        else return false;
        if (overflow) return false;
    }
    return true;
}

/* The numbers at some places, the flag of a place says whether it is a float. */
static PyObject *numbers(const Word *words, const int *places, Py_ssize_t count) {
    PyObject *found = PyList_New(count);
    for (Py_ssize_t k = 0; found != NULL && k < count; k++) {
        PyObject *number = places[2 * k + 1] ? PyFloat_FromDouble(words[places[2 * k]].f) : PyLong_FromLongLong(words[places[2 * k]].i);
        if (number == NULL) Py_CLEAR(found);
        else PyList_SET_ITEM(found, k, number);
    }
    return found;
}

/* arithmetic(values, steps, guards, results, hashed): the results; the number of the first guard that does not hold (-1: a number that was hashed is
   plain); or None where it takes Python's numbers. Steps are rows (operation, place, place), guards (operation, place, place, answer), results and
   hashed (place, whether it is a float). */
PyObject *arithmetic(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Py_buffer tables[4] = {{0}};
    PyObject *result = NULL;
    Word *words = NULL;
    if (count != 5 || !PyList_Check(args[0])) return PyErr_Format(PyExc_TypeError, "[arithmetic] expected a list and four tables of integers");
    for (int k = 0; k < 4; k++)
        if (PyObject_GetBuffer(args[k + 1], &tables[k], PyBUF_SIMPLE) < 0) goto end;
    const int *steps = tables[0].buf, *guards = tables[1].buf, *results = tables[2].buf, *hashed = tables[3].buf;
    Py_ssize_t start = PyList_GET_SIZE(args[0]), rows = tables[0].len / 12, asked = tables[1].len / 16, keys = tables[3].len / 8;
    words = PyMem_Malloc((size_t)(start + rows + 1) * sizeof(Word));
    if (words == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    bool whole = given(args[0], words);
    for (Py_ssize_t k = 0; whole && k < rows; k++)
        whole = computed(steps[3 * k], words[steps[3 * k + 1]], words[steps[3 * k + 2]], &words[start + k]);
    for (Py_ssize_t k = 0; whole && k < asked; k++) {
        Word answer;
        whole = computed(guards[4 * k], words[guards[4 * k + 1]], words[guards[4 * k + 2]], &answer);
        if (whole && answer.i != guards[4 * k + 3]) {
            result = PyLong_FromSsize_t(k);
            goto end;
        }
    }
    for (Py_ssize_t k = 0; whole && k < keys; k++) {
        Word key = words[hashed[2 * k]];
        double value = hashed[2 * k + 1] ? key.f : (double)key.i;
        if (value == -1 || value == 0 || value == 1) {
            result = PyLong_FromLong(-1);
            goto end;
        }
    }
    result = whole ? numbers(words, results, tables[2].len / 8) : Py_NewRef(Py_None);
end:
    PyMem_Free(words);
    for (int k = 0; k < 4; k++)
        if (tables[k].obj != NULL) PyBuffer_Release(&tables[k]);
    return result;
}
