/* Operations that are computed where they are written: `Eager` of `autograd/eager.py`, where a kernel does the work. */
#ifndef CALQUE_EAGER_H
#define CALQUE_EAGER_H

#include "handles.h"

extern PyTypeObject *eager_type;
extern PyTypeObject Memo_Type;
extern PyTypeObject Superinstruction_Type;

/* Each gives NULL without an error set where Python is to do it. */
PyObject *eager_unary(PyObject *state, PyObject *op, PyObject *memo, PyObject *a);
PyObject *eager_binary(PyObject *state, PyObject *op, PyObject *memo, PyObject *a, PyObject *b, bool two);
PyObject *eager_record(PyObject *state, PyObject *op, PyObject *operands, PyObject *attrs, PyObject *row_major);

bool possible(PyObject *state);
PyObject *origin_of(PyObject *t); /* the layout of a tensor without its offset, of which steps know nothing */
PyObject *new_buffer(PyObject *array); /* of an array, which it takes over; NULL if that is NULL, or there is no memory */
PyObject *tensor_over(PyObject *flat, PyObject *memory, PyObject *layout); /* a tensor over a flat array, which it takes over */
bool may_be_code(PyObject *trace, PyObject *t);
PyObject *set_instructed(PyObject *module, PyObject *args);
PyObject *tell_call(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *gradients_by(PyObject *formulas, PyObject *trace, PyObject *node, PyObject *gradient); /* NULL without an error: none is for the node */
PyObject *run_gradients(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *run_superinstruction(PyObject *module, PyObject *const *args, Py_ssize_t count);
bool user_site(PyCodeObject **code, int *position);
PyObject *known_line(PyCodeObject *code, int position);
PyObject *line_of_user(PyObject *module, PyObject *none);
PyObject *set_source(PyObject *module, PyObject *args);

PyObject *set_programs(PyObject *module, PyObject *primitives);
PyObject *nodes_of(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *rows_of(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *set_growing(PyObject *module, PyObject *args);
PyObject *grown(PyObject *state, PyObject *trace, PyObject *key, PyObject *op, PyObject *slots, PyObject *attrs, PyObject *const *operands);
PyObject *view_grown(PyObject *module, PyObject *const *args, Py_ssize_t count);
bool is_usual(PyObject *memo, PyObject *a, PyObject *b);

PyObject *memo_entries(PyObject *module, PyObject *none);
PyObject *set_eager(PyObject *module, PyObject *args);
PyObject *eager_array(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *eager_made(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *array_over(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *set_reading(PyObject *module, PyObject *args);
PyObject *read_element(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *set_writing(PyObject *module, PyObject *args);
PyObject *accumulate(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *write_at_once(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *index_key(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
