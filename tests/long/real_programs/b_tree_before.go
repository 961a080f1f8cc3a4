// Look-ups of random keys in a B-tree of integers.
package main

import (
	"fmt"

	"github.com/google/btree"
)

const keys = 400000

var state uint64 = 7

func draw() uint64 {
	state ^= state << 13
	state ^= state >> 7
	state ^= state << 17
	return state
}

//go:noinline
func fill(tree *btree.BTree) {
	for i := 0; i < keys; i++ {
		tree.ReplaceOrInsert(btree.Int(draw() % (1 << 40)))
	}
}

//go:noinline
func lookUp(tree *btree.BTree) int {
	found := 0
	for i := 0; i < 2*keys; i++ {
		if tree.Get(btree.Int(draw()%(1<<40))) != nil {
			found++
		}
	}
	return found
}

func main() {
	tree := btree.New(32)
	fill(tree)
	state = 7
	fmt.Println(lookUp(tree))
}
