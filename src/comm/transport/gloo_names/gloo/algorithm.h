// ProcessGroupGloo.hpp includes this header of Gloo but uses no name of it. See context.h.
#pragma once
