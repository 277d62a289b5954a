std = 'luajit'
max_line_length = 100
codes = true
exclude_files = { 'build' }
ignore = { '212/self' } -- methods that do not need their object

files['spec'] = { std = '+busted' }
files['bindings/moonshard'] = { std = 'luajit' }
