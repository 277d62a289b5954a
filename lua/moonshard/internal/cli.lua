--- The former name of moonshard.tools.cli, by which scripts outside start ranks.
return require 'moonshard.tools.cli'
