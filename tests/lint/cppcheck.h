/* What cppcheck is told in place of the system's headers: the loops of jansson, whose macros it cannot find. */
#define json_array_foreach(a, i, v) for (i = 0; (v = json_array_get(a, i)); i++)
#define json_object_foreach(o, k, v)                                                                                   \
        for (void *it = json_object_iter(o); it && (k = json_object_iter_key(it)) && (v = json_object_iter_value(it)); \
             it = json_object_iter_next(o, it))
