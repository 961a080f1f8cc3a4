# String instructions: longer than QEMU repeats one before it looks for signals
# (65 535 times), once, not at all, and ended by what they find.
.globl _start
_start: cld
 lea a(%rip), %rsi
 lea b(%rip), %rdi
 mov $100000, %rcx
 rep movsb                      # 100 000 loads and stores
 lea b(%rip), %rdi
 mov $70000, %rcx
 mov $0, %eax
 rep stosq                      # 70 000 stores
 lea a(%rip), %rsi
 lea b(%rip), %rdi
 mov $200000, %rcx
 repe cmpsb                     # 400 000 loads
 lea b(%rip), %rdi
 movb $1, 999(%rdi)             # 1 store
 mov $150000, %rcx
 mov $1, %al
 repne scasb                    # 1000 loads
 lea b(%rip), %rsi
 mov $80000, %rcx
 rep lodsl                      # 80 000 loads
 xor %ecx, %ecx
 rep stosb                      # nothing
 mov $1, %ecx
 rep movsl                      # 1 load and store
 xor %edi, %edi
 mov $60, %eax
 syscall
.bss
.balign 4096
a: .zero 600000
b: .zero 600000
