// What every snippet of the torch-free pages may use.
#include <penstock/plan.h>

namespace ps = penstock;
