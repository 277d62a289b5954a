/* The layout room's inside. It has no secrets from the rooms above it: everything is public. */
#ifndef MSI_LAYOUT_H
#define MSI_LAYOUT_H

#include "moonshard/layout.h"

#endif
