-- One rank of a launched program: `moonshard run -n 2 luajit spec/fsdp/programs/rank.lua PROGRAM`.
package.path = 'spec/?.lua;' .. package.path
local ms = require 'moonshard'
ms.dist.init()
require 'fsdp.programs.check'(require('fsdp.programs.maker').parse(arg[1]))
