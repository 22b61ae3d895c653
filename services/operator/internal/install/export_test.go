package install

// Files are what is installed.
var Files = files
