/* `calque._hot`: what is done for every operation, and the same every time, without Python's frames. `calque/native/README.md` says which file
   holds what. Each function has a twin in Python that does the same and is used where this module is not there. */
#define CALQUE_MAIN
#define INTERFACE 9 /* as in `calque/base/native.py`: another number for every change of what Python and this module hand to each other */
#include "kernels.h"
#include "eager.h"

PyObject *record_unary(PyObject *, PyObject *const *, Py_ssize_t);
PyObject *record_binary(PyObject *, PyObject *const *, Py_ssize_t);
PyObject *record_general(PyObject *, PyObject *const *, Py_ssize_t);
PyObject *record_named(PyObject *, PyObject *const *, Py_ssize_t);
PyObject *set_backward(PyObject *, PyObject *);
PyObject *set_rules(PyObject *, PyObject *);
PyObject *run_pass(PyObject *, PyObject *const *, Py_ssize_t);
PyObject *reach(PyObject *, PyObject *const *, Py_ssize_t);
PyObject *arithmetic(PyObject *, PyObject *const *, Py_ssize_t);
PyObject *set_shelf(PyObject *, PyObject *);
extern PyTypeObject Shelf_Type;

/* set_up(classes, local, types, numbers, slot_of, flush, bound, baked, scalar_tag, primitives, recorded) */
static PyObject *set_up(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *classes;
    if (!PyArg_ParseTuple(args, "O!OOOOOOOOOO", &PyDict_Type, &classes, &known.local, &known.types, &known.numbers, &known.slot_of, &known.flush,
                          &known.bound, &known.baked, &known.scalar_tag, &known.primitives, &known.recorded))
        return NULL;
    if (!find_classes(classes)) return NULL;
    Py_INCREF(args); /* keeps all of them */
    known.state_name = PyUnicode_InternFromString("state");
    known.storage_name = PyUnicode_InternFromString("_storage");
    known.storage_slot = Py_XNewRef(_PyType_Lookup(Tensor.type, known.storage_name));
    known.zero = PyLong_FromLong(0);
    known.one = PyLong_FromLong(1);
    known.minus_one = PyLong_FromLong(-1);
    known.empty_string = PyUnicode_InternFromString("");
    known.empty_tuple = PyTuple_New(0);
    known.tag_s = PyUnicode_InternFromString("s");
    Py_RETURN_NONE;
}

/* acyclic(x, ..): `x`, which like the others the collector of cycles need not look at any more. */
static PyObject *acyclic(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    if (count == 0) Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyObject_IS_GC(args[i]) && PyObject_GC_IsTracked(args[i])) PyObject_GC_UnTrack(args[i]);
    return Py_NewRef(args[0]);
}

#define FAST(name, function, text) {name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, text}

static PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, "set_up(classes, local, types, ..): what the others work with."},
    {"set_eager", set_eager, METH_VARARGS, "set_eager(Eager, Step, steps, known_steps, step_for, array, made, edge, edge_at, settings, tracing): the same."},
    {"set_reading", set_reading, METH_VARARGS, "set_reading(sites, unreported): what reads count and look at."},
    {"set_writing", set_writing, METH_VARARGS, "set_writing(writers, Silent, CPU): what writes look at."},
    {"set_growing", set_growing, METH_VARARGS, "set_growing(results, result, line, Counters, make_room, InUse, WITH_OFFSET, settings, VIEW, VIEW_AT, varying, value_layout): what new edges need."},
    {"set_programs", set_programs, METH_O, "set_programs(primitives that come with Calque)"},
    {"set_source", set_source, METH_VARARGS, "set_source(ours, others, foreign, lines, twin): what `user_line` looks at."},
    {"set_shelf", set_shelf, METH_VARARGS, "set_shelf(Call, WATCH, queues, waiting, done, seconds): what calls of a shelf look at."},
    {"user_line", line_of_user, METH_NOARGS, "user_line(): `file:line` of the code that called into Calque, or an empty text."},
    {"set_blas", set_blas, METH_VARARGS, "set_blas(address of sgemm, of dgemm, of cgemm, of zgemm, whether its integers have 64 bits)"},
    {"set_bfloat16", set_bfloat16, METH_O, "set_bfloat16(number of the type among NumPy's)"},
    {"ufuncs", own_ufuncs, METH_NOARGS, "ufuncs(): functions of NumPy's kind for primitives that it has none for, or another one, by their names."},
    {"unchanged", new_unchanged, METH_VARARGS, "unchanged(facts, arguments, strangers, checks, sources, step): what compares all that, or None where Python is to do it."},
    FAST("acyclic", acyclic, "acyclic(x, ..): x; the collector of cycles no longer looks at any of them."),
    {"bits", draw_bits, METH_VARARGS, "bits(seed, offset, count): random bits, as int64."},
    {"set_backward", set_backward, METH_VARARGS, "set_backward(add, memo, total, shown_back)"},
    {"set_rules", set_rules, METH_O, "set_rules(NodeSteps): the class of rules that know their steps."},
    {"remembered", memo_entries, METH_NOARGS, "remembered(): how many steps the memos of recording functions hold."},
    FAST("nodes_of", nodes_of, "nodes_of(path, scalar, constant): the nodes of a program, and where the value of each slot is among them."),
    FAST("rows_of", rows_of, "rows_of(nodes, places): what tells a program from others, and its sizes; None for operations of others."),
    FAST("view_grown", view_grown, "view_grown(trace, key, base, layout, view): a new edge, or None where Python is to make it."),
    FAST("unary", record_unary, "unary(op, memo, input): the result, or None where Python is to make it."),
    FAST("binary", record_binary, "binary(op, memo, a, b): the result, or None where Python is to make it."),
    FAST("record", record_general, "record(op, operands, attrs, row_major): the result, or None where Python is to make it."),
    FAST("prim", record_named, "prim(name, *arguments): the result of a primitive; tensors, or numbers with their types, before its attributes."),
    FAST("make_view", make_view, "make_view(t, kind, label)"),
    FAST("array", eager_array, "array(trace, t): the values of a tensor, where they lie."),
    FAST("made", eager_made, "made(trace, value, view, fresh): a tensor of what a routine gave."),
    FAST("over", array_over, "over(owner, array, dtype, count): a flat array over the memory of another one, which `owner` keeps alive."),
    FAST("number", read_element, "number(t, reason): the only element of a tensor, or None where Python is to read it."),
    FAST("write_at_once", write_at_once, "write_at_once(t, value): whether a tensor or a number was written into the tensor; else nothing has happened."),
    FAST("accumulate", accumulate, "accumulate(leaf, gradient): whether the leaf has the gradient now; else nothing has happened."),
    FAST("basic_key", index_key, "basic_key(items, read): a hashable form of an index, or None if a view is not made by it."),
    {"set_instructed", set_instructed, METH_VARARGS, "set_instructed(classes of sizes, of what is told by its value, names of the module of dtypes, at_offset)"},
    FAST("told", tell_call, "told(function, args, keywords): what tells the call from others, and its operands; None where Python is to compute it."),
    FAST("instructed", run_superinstruction, "instructed(table, function, args, keywords): what it gives, None where Python is to compute it, or False: steps are unknown."),
    FAST("gradients", run_gradients, "gradients(formulas, trace, node, gradient): what the node gives for its targets by the first that is for it, or None."),
    FAST("arithmetic", arithmetic, "arithmetic(values, steps, guards, results, hashed): the results, the guard that does not hold, or None."),
    FAST("reaches", reach, "reaches(roots, wanted): ids of what leads to one that is wanted, or None where Python is to look."),
    FAST("run_pass", run_pass, "run_pass(work, state, heap, pending, leaves, keep, needed, wanted): works through the nodes that have nothing unusual."),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "calque._hot", "The hot paths of recording, in C.", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__hot(void) {
    import_array();
    import_umath();
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyModule_AddType(module, &Kernel_Type) < 0 || PyModule_AddType(module, &Memo_Type) < 0 || PyModule_AddType(module, &Superinstruction_Type) < 0 || PyModule_AddType(module, &Unchanged_Type) < 0 || PyModule_AddType(module, &Shelf_Type) < 0
            || PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        return NULL;
    return module;
}
