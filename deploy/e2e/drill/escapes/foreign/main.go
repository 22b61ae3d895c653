// Command foreign says that it is alive. Drills build it for another architecture, whose system calls have other numbers.
package main

import "fmt"

func main() { fmt.Println("alive") }
