// Checks how many file descriptors this process may still open, to fail early: libtorch and Gloo retry for
// minutes if they cannot open a socket.
#pragma once

#include <string>

namespace penstock::comm {

//! Raises the soft limit of this process to the hard limit, but at most to 65536: each foreign connection to
//! a listening port costs a descriptor. Child processes inherit the limit.
void raise_descriptor_limit();

//! Returns whether the limit is reached and is so low that the job itself may have reached it.
bool out_of_descriptors();

//! Throws CommError with the limit and the number in use if `count` more descriptors cannot be opened.
//! `purpose` is part of the message.
void require_descriptors(int count, const std::string& purpose);

}  // namespace penstock::comm
