// File descriptors: how many this process may still open, and an error while there is time for one. libtorch
// and Gloo try again for minutes where they get none.
#pragma once

#include <string>

namespace penstock {

//! Raises this process's soft limit as far as the hard limit allows, to 65536 at most: strangers who connect
//! to a listening port each cost a descriptor. Child processes inherit it.
void raise_descriptor_limit();

//! Whether the limit is so low that a job may reach it by itself, and it is reached.
bool out_of_descriptors();

//! CommError, with the limit and the number in use, unless `count` more can be opened for `purpose`.
void require_descriptors(int count, const std::string& purpose);

}  // namespace penstock
