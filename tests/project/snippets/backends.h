// docs/backends.md: the caller has a process group. As in the page, c10d's own headers are not included.
#include <c10/util/intrusive_ptr.h>

extern c10::intrusive_ptr<c10d::ProcessGroup> process_group;
