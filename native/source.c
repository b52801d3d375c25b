/* The user's line, as in `observe/source.py`: the innermost frame outside the package. */
#include "handles.h"
#include "eager.h"

static PyObject *ours, *others, *foreign, *lines, *line_twin;

/* set_source(files of the package, files that are not, what tells one from the other, lines of the user, twin of `user_line`) */
PyObject *set_source(PyObject *module, PyObject *args) {
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOOO", &ours, &others, &foreign, &lines, &line_twin)) return NULL;
    Py_INCREF(args); /* keeps all of them */
    Py_RETURN_NONE;
}

/* As `user_site`; false without an error if nobody's Python has called, or with one. The code is a new reference. */
bool user_site(PyCodeObject **code, int *position) {
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != NULL) {
        *code = PyFrame_GetCode(frame);
        *position = PyFrame_GetLasti(frame);
        int here = PySet_Contains(ours, (*code)->co_filename);
        if (here == 0 && PyDict_GetItemWithError(others, (*code)->co_filename) == NULL) {
            PyObject *answer = PyErr_Occurred() ? NULL : PyObject_CallOneArg(foreign, (*code)->co_filename);
            here = answer == NULL ? -1 : answer == Py_False;
            Py_XDECREF(answer);
        }
        PyFrameObject *back = here == 1 ? PyFrame_GetBack(frame) : NULL;
        Py_DECREF(frame);
        if (here == 0) return true;
        Py_CLEAR(*code);
        frame = back;
    }
    return false;
}

/* The line that is known of a place in the user's code; NULL with or without an error if it is not known. A borrowed reference. */
PyObject *known_line(PyCodeObject *code, int position) {
    PyObject *place = Py_BuildValue("(Ni)", PyLong_FromVoidPtr(code), position), *entry = place == NULL ? NULL : PyDict_GetItemWithError(lines, place);
    Py_XDECREF(place);
    return entry != NULL && PyTuple_GET_ITEM(entry, 0) == (PyObject *)code ? PyTuple_GET_ITEM(entry, 1) : NULL;
}

/* user_line() */
PyObject *line_of_user(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    PyCodeObject *code;
    int position;
    if (!user_site(&code, &position)) return PyErr_Occurred() ? NULL : PyUnicode_New(0, 0);
    PyObject *line = Py_XNewRef(known_line(code, position));
    Py_DECREF(code);
    return line != NULL || PyErr_Occurred() ? line : PyObject_CallNoArgs(line_twin);
}
