// Scans 256 MiB.
package main

import "fmt"

func main() {
	all := make([]uint64, 8<<20)
	var sum uint64
	for round := 0; round < 4; round++ {
		for i := 0; i < len(all); i += 8 {
			sum += all[i]
		}
	}
	fmt.Println(sum)
}
