--- An estimate of a step of GPT-2 124M in bf16 on one H100 SXM, from shapes and assumed rates.
--- Nothing is measured. `luajit bench/roofline.lua` prints the table of docs/gpu.md. Bytes: each
--- operand of a kernel is counted once.

local B, T, C, L, H, V = 16, 1024, 768, 12, 12, 50257
local n, D = B * T, C / H -- tokens, width of a head
local blocks = L * (12 * C ^ 2 + 13 * C)
local params = blocks + V * C + T * C + 2 * C

-- Assumed. FLOP/s of large products with f32 sums; of cuDNN's attention, published for the forward,
-- less for a backward whose sums repeat; bytes/s of streaming kernels.
local PRODUCT, HEAD, FORWARD, BACKWARD, MEMORY = 520e12, 560e12, 280e12, 200e12, 2.9e12
local CALLS, GAP = 327, 1.5e-6 -- docs/gpu.md; seconds of the device between two of them
local BF16 = 2 -- bytes

local scores = B * H * T * (T + 1) / 2
local rows = n * C * BF16 -- bytes of a tensor of activations

-- { part, FLOP or bytes of a step, their rate }
local parts = {
  { 'products of the blocks', 6 * n * L * 12 * C ^ 2, PRODUCT },
  { "products of the logits' head", 6 * n * C * V, HEAD },
  { 'attention, forward: 2 products', L * 2 * 2 * scores * D, FORWARD },
  { 'attention, backward: 5 products', L * 5 * 2 * scores * D, BACKWARD },
  { 'cross-entropy: logits three times', 3 * n * V * BF16, MEMORY },
  { 'layer norm', (2 * L + 1) * 2 * rows, MEMORY },
  { "layer norm's gradient, sums of blocks", (2 * L + 1) * 3 * rows + 0.24e9, MEMORY },
  { 'GELU: its result beside its operand', L * 4 * rows, MEMORY },
  { "GELU's gradient", L * 3 * 4 * rows, MEMORY },
  { 'additions of residuals and positions', (2 * L + 1) * 3 * rows, MEMORY },
  { 'casts of parameters, of blocks twice', (4 + BF16) * (params + blocks), MEMORY },
  { 'embeddings, both ways', 6 * rows + 2 * 4 * V * C, MEMORY },
  { 'norm and scale of gradients', 3 * 4 * params, MEMORY },
  { 'AdamW', 7 * 4 * params, MEMORY },
  { 'gradients into their slots', 2 * 4 * params, MEMORY },
}

print '| part | TFLOP or GB | assumed | ms |\n|---|---|---|---|'
local sum = CALLS * GAP
for _, part in ipairs(parts) do
  local label, work, rate = unpack(part)
  local is_bytes = rate == MEMORY
  sum = sum + work / rate
  print(('| %s | %.2f %s | %s | %.1f |'):format(label, work / (is_bytes and 1e9 or 1e12),
    is_bytes and 'GB' or 'TFLOP', is_bytes and ('%.1f TB/s'):format(rate / 1e12)
      or ('%.0f TFLOP/s'):format(rate / 1e12), 1e3 * work / rate))
end
print(('| gaps between %d calls | | %.1f us | %.1f |'):format(CALLS, GAP * 1e6, 1e3 * CALLS * GAP))
local flops = 6 * (params - T * C) + 6 * L * T * C
print(('| sum: %.0f thousand tokens/s, %.0f TFLOP/s | | | %.1f |'):format(n / sum / 1e3,
  flops * n / sum / 1e12, 1e3 * sum))
