// Scans 64 MiB: `scan ROUNDS`.
package main

import (
	"fmt"
	"os"
	"strconv"
)

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	all := make([]uint64, 8<<20)
	var sum uint64
	for round := 0; round < rounds; round++ {
		for i := 0; i < len(all); i += 8 {
			sum += all[i]
		}
	}
	fmt.Println(sum)
}
