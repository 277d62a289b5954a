/* The layout folder has no private interface; everything is public. */
#ifndef MSI_LAYOUT_H
#define MSI_LAYOUT_H

#include "moonshard/layout.h"

#endif
