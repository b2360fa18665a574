"""Chains by operator: what each attribute does, every spatial rank, odd extents, extents of 1, empty batches.

`test_parity.py` fails if an operator of the library has no row here.
"""

ACTIVATION = "x[3,5,7]"

CASES = {
    # ---- producers ----
    "conv1d": [
        "x[2,3,11] | conv1d(4,3)",
        "x[2,3,11] | conv1d(4,3,2,1,2,bias=False)",
        "x[2,4,9] | conv1d(6,4,padding='same',groups=2)",
        "x[2,4,9] | conv1d(6,4,padding='same',dilation=3)",
        "x[3,11] | conv1d(4,3)",
        "x[0,3,11] | conv1d(4,3)",
        "x[1,1,1] | conv1d(1,1)",
    ],
    "conv2d": [
        "x[2,3,7,9] | conv2d(4,3)",
        "x[2,3,7,9] | conv2d(4,(3,2),stride=(2,3),padding=(1,0))",
        "x[2,3,9,13] | conv2d(5,3,dilation=(2,3),padding=2)",
        "x[2,6,7,5] | conv2d(9,3,groups=3,padding=1)",
        "x[2,6,7,5] | conv2d(6,3,groups=6,bias=False)",
        "x[2,3,8,7] | conv2d(4,(2,4),padding='same')",
        "x[2,3,8,7] | conv2d(4,3,padding='same',dilation=(1,2))",
        "x[2,3,8,7] | conv2d(4,3,2,padding='valid')",
        "x[2,3,3,3] | conv2d(4,3)",
        "x[2,3,1,1] | conv2d(4,3,padding=1)",
        "x[2,3,1,5] | conv2d(4,1)",
        "x[2,3,4,4] | conv2d(4,3,padding=5)",
        "x[3,7,9] | conv2d(4,3)",
        "x[0,3,7,9] | conv2d(4,3)",
        "x[1,17,5,5] | conv2d(33,3,padding=1)",
        "x[2,3,7,9] | conv2d(4,3,weight=w[4,3,3,3],bias=b[4])",
        "x[2,3,7,9] | conv2d(4,3,w[4,3,3,3])",
    ],
    "conv3d": [
        "x[2,3,4,5,6] | conv3d(4,3)",
        "x[2,3,5,6,7] | conv3d(4,(1,2,3),stride=(2,1,3),padding=(0,1,2),dilation=(1,2,1))",
        "x[1,4,3,4,5] | conv3d(6,2,groups=2,padding='same')",
        "x[3,4,5,6] | conv3d(4,3)",
        "x[0,3,4,5,6] | conv3d(4,3,bias=False)",
    ],
    "conv_transpose1d": [
        "x[2,3,5] | conv_transpose1d(4,3)",
        "x[2,4,5] | conv_transpose1d(6,3,stride=2,padding=1,output_padding=1,groups=2)",
        "x[2,3,5] | conv_transpose1d(4,3,1,0,1,1,2)",
        "x[3,5] | conv_transpose1d(4,3)",
        "x[0,3,5] | conv_transpose1d(4,3)",
    ],
    "conv_transpose2d": [
        "x[2,3,4,5] | conv_transpose2d(4,3)",
        "x[2,3,4,5] | conv_transpose2d(4,(3,2),stride=(2,3),padding=(1,0),output_padding=(1,2))",
        "x[2,6,4,5] | conv_transpose2d(4,3,stride=2,groups=2,dilation=2,bias=False)",
        "x[2,6,3,3] | conv_transpose2d(6,3,groups=6,padding=2)",
        "x[1,3,1,1] | conv_transpose2d(2,4,stride=3)",
        "x[3,4,5] | conv_transpose2d(4,3)",
    ],
    "conv_transpose3d": [
        "x[2,3,2,3,4] | conv_transpose3d(4,3)",
        "x[2,4,2,3,4] | conv_transpose3d(6,(1,2,3),stride=(2,1,3),padding=(0,1,1),output_padding=(1,0,2),groups=2)",
        "x[1,2,3,3,3] | conv_transpose3d(2,2,dilation=(1,2,3),bias=False)",
    ],
    "linear": [
        "x[5,7] | linear(3)",
        "x[7] | linear(3)",
        "x[2,3,4,7] | linear(5,bias=False)",
        "x[0,7] | linear(3)",
        "x[5,1] | linear(1)",
        "x[5,7] | linear(3,weight=w[3,7])",
        "x[5,0] | linear(3)",
    ],
    "matmul": [
        "x[5,7] | matmul(w[7,3])",
        "x[2,3,5,7] | matmul(w[7,3])",
        "x[2,3,5,7] | matmul(w[3,7,2])",
        "x[2,1,5,7] | matmul(w[4,7,2])",
        "x[5,7] | matmul(w[4,2,7,3])",
        "x[7] | matmul(w[7])",
        "x[7] | matmul(w[7,3])",
        "x[7] | matmul(w[2,7,3])",
        "x[2,5,7] | matmul(w[7])",
        "x[0,5,7] | matmul(w[7,3])",
        "x[5,0] | matmul(w[0,3])",
        "x[4,4], y[4,4] | matmul(@y) | matmul(@x)",
    ],
    # ---- norms ----
    "group_norm": [
        "x[2,6,5,7] | group_norm(3)",
        "x[2,6,5,7] | group_norm(1,affine=False)",
        "x[2,6,5,7] | group_norm(6,eps=0.1)",
        "x[2,6] | group_norm(2)",
        "x[3,200] | group_norm(4)",  # rows by vectors, with a rest
        "x[3,62] | group_norm(2)",
        "x[2,6,5] | group_norm(2,1e-3)",
        "x[2,4,2,3,4] | group_norm(2)",
        "x[0,6,5,7] | group_norm(3)",
        "x[2,6,5,7] | group_norm(3,weight=g[6],bias=b[6])",
        "x[3,4,1,1] | group_norm(4)",
        "x[3,4] | group_norm(2,affine=False) | logsumexp(1)",  # a split row, reduced
        "x[12,64] | linear(64) | group_norm(8) | min(1,keepdim=True)",
        "x[2,8,1,1] | group_norm(2) | softmax(1)",
    ],
    "batch_norm": [
        "x[3,4,5,6] | batch_norm",
        "x[3,4,5,6] | batch_norm(affine=False)",
        "x[3,4,5,6] | batch_norm(training=True)",
        "x[3,4,5,6] | batch_norm(True,0.2,0.01,False)",
        "x[3,4] | batch_norm(eps=0.5)",
        "x[3,4] | batch_norm(training=True)",
        "x[3,4,5] | batch_norm(training=True)",
        "x[3,4,2,3,4] | batch_norm(training=True)",
        "x[1,4,1] | batch_norm",
        "x[0,4,5] | batch_norm(training=True)",
        "x[0,4,5] | batch_norm",
    ],
    "instance_norm": [
        "x[2,3,5] | instance_norm",
        "x[2,3,5,7] | instance_norm(affine=True)",
        "x[2,3,2,3,4] | instance_norm(0.01,True)",
        "x[0,3,5] | instance_norm",
        "x[1,0,3] | instance_norm",
    ],
    "layer_norm": [
        "x[2,3,5] | layer_norm(5)",
        "x[2,3,5] | layer_norm((3,5))",
        "x[2,3,5] | layer_norm((2,3,5),affine=False)",
        "x[2,3,5] | layer_norm(5,eps=0.1,bias=False)",
        "x[5] | layer_norm(5)",
        "x[2,1] | layer_norm(1)",
        "x[0,5] | layer_norm(5)",
    ],
    "rms_norm": [
        "x[2,3,5] | rms_norm(5)",
        "x[2,3,5] | rms_norm((3,5),eps=0.1)",
        "x[2,3,5] | rms_norm(5,affine=False)",
        "x[2,1] | rms_norm(1)",
        "x[0,5] | rms_norm(5)",
    ],
    # ---- pointwise ----
    **{
        op: [f"{ACTIVATION} | {op}", f"x[1] | {op}", f"x[0,3] | {op}"]
        for op in (
            "relu relu6 selu silu mish sigmoid hardsigmoid tanh hardswish softsign exp neg abs square erf".split()
        )
    },
    **{op: [f"{ACTIVATION} | abs | {op}", f"{ACTIVATION} | {op}"] for op in ("log", "sqrt", "rsqrt")},
    "leaky_relu": [f"{ACTIVATION} | leaky_relu", f"{ACTIVATION} | leaky_relu(-0.5)", f"{ACTIVATION} | leaky_relu(0)"],
    "elu": [f"{ACTIVATION} | elu", f"{ACTIVATION} | elu(0.3)", f"{ACTIVATION} | elu(alpha=-2)"],
    "gelu": [f"{ACTIVATION} | gelu", f"{ACTIVATION} | gelu('tanh')", f"{ACTIVATION} | gelu(approximate='none')"],
    "cast": [  # results of these are float32; test_half.c has the others
        f"{ACTIVATION} | cast('fp32')",
        f"{ACTIVATION} | exp | cast('fp32') | neg",
        "x[0,3] | cast('fp32')",
    ],
    "hardtanh": [f"{ACTIVATION} | hardtanh", f"{ACTIVATION} | hardtanh(-0.2,0.7)", f"{ACTIVATION} | hardtanh(0,6)"],
    "softplus": [
        f"{ACTIVATION} | softplus",
        f"{ACTIVATION} | softplus(2,0.5)",
        f"{ACTIVATION} | mul(30) | softplus",
        f"{ACTIVATION} | softplus(0.1,threshold=1)",
    ],
    "clamp": [
        f"{ACTIVATION} | clamp(0,1)",
        f"{ACTIVATION} | clamp(min=-0.5)",
        f"{ACTIVATION} | clamp(max=0.25)",
        f"{ACTIVATION} | clamp(None,0)",
        f"{ACTIVATION} | clamp(1,-1)",
        f"{ACTIVATION} | clamp(-inf,inf)",
    ],
    **{
        op: [
            f"x[2,3,5] | {op}(w[3,1])",
            f"x[2,3,5] | {op}(w[5])",
            f"x[2,1,5] | {op}(w[4,1,3,1])",
            f"x[5] | {op}(w[2,3,1])",
            f"x[2,3], y[2,3] | {op}(@y)",
            f"x[2,3] | tanh @t | exp | {op}(@t)",
            f"x[2,3] | {op}(@x)",
            f"x[2,3,5] | {op}(0.3)",
            f"x[2,3,5] | {op}(other=-2)",
            f"x[0,3] | {op}(w[3])",
            f"x[1,3] | {op}(w[0,1])",
            *([f"x[2,3] | {op}(w[3],alpha=-0.7)", f"x[2,3] | {op}(2,alpha=3)"] if op in ("add", "sub") else []),
        ]
        for op in ("add", "sub", "mul", "div", "maximum", "minimum")
    },
    # ---- pooling ----
    "max_pool1d": [
        "x[2,3,11] | max_pool1d(3)",
        "x[2,3,11] | max_pool1d(3,2,1)",
        "x[2,3,11] | max_pool1d(3,2,1,2,True)",
        "x[3,11] | max_pool1d(2)",
        "x[0,3,11] | max_pool1d(2)",
        "x[2,3,2] | max_pool1d(3,2,ceil_mode=True)",
    ],
    "max_pool2d": [
        "x[2,3,7,9] | max_pool2d(2)",
        "x[2,3,7,9] | max_pool2d(4)",
        "x[2,3,7,9] | max_pool2d((3,2),stride=(2,1),padding=(1,0))",
        "x[2,3,7,9] | max_pool2d(3,stride=2,dilation=(2,3))",
        "x[2,3,7,9] | max_pool2d(2,ceil_mode=True)",
        "x[2,3,8,8] | max_pool2d(3,2,1,ceil_mode=True)",
        "x[2,3,6,6] | max_pool2d(2,3,1,ceil_mode=True)",
        "x[2,3,1,1] | max_pool2d(1)",
        "x[3,7,9] | max_pool2d(2)",
        "x[0,3,7,9] | max_pool2d(2)",
    ],
    "max_pool3d": [
        "x[2,3,4,5,6] | max_pool3d(2)",
        "x[2,3,5,6,7] | max_pool3d((1,2,3),stride=(2,1,2),padding=(0,1,1),dilation=(1,2,1),ceil_mode=True)",
        "x[3,4,5,6] | max_pool3d(2)",
    ],
    "avg_pool1d": [
        "x[2,3,11] | avg_pool1d(3)",
        "x[2,3,11] | avg_pool1d(3,2,1)",
        "x[2,3,11] | avg_pool1d(4,3,2,ceil_mode=True,count_include_pad=False)",
        "x[2,3,10] | avg_pool1d(4,3,2,True)",
        "x[3,11] | avg_pool1d(2)",
        "x[2,3,2] | avg_pool1d(3,2,ceil_mode=True)",
    ],
    "avg_pool2d": [
        "x[2,3,7,9] | avg_pool2d(2)",
        "x[2,3,7,9] | avg_pool2d((3,2),stride=(2,1),padding=(1,1))",
        "x[2,3,7,9] | avg_pool2d(3,2,1,count_include_pad=False)",
        "x[2,3,7,9] | avg_pool2d(3,2,1,ceil_mode=True)",
        "x[2,3,7,9] | avg_pool2d(4,3,2,True,False)",
        "x[2,3,7,9] | avg_pool2d(3,2,1,divisor_override=5)",
        "x[2,3,6,6] | avg_pool2d(2,3,1,ceil_mode=True)",
        "x[3,7,9] | avg_pool2d(2)",
        "x[0,3,7,9] | avg_pool2d(2)",
    ],
    "avg_pool3d": [
        "x[2,3,4,5,6] | avg_pool3d(2)",
        "x[2,3,5,6,7] | avg_pool3d((1,2,3),(2,1,2),(0,1,1),ceil_mode=True)",
        "x[2,3,5,6,7] | avg_pool3d(3,2,1,count_include_pad=False)",
        "x[2,3,5,6,7] | avg_pool3d(3,2,1,divisor_override=2)",
        "x[3,4,5,6] | avg_pool3d(2)",
    ],
    "adaptive_avg_pool1d": ["x[2,3,7] | adaptive_avg_pool1d(1)", "x[2,3,7] | adaptive_avg_pool1d(4)", "x[3,7] | adaptive_avg_pool1d(1)"],
    "adaptive_avg_pool2d": [
        "x[2,3,7,5] | adaptive_avg_pool2d(1)",
        "x[2,3,7,5] | adaptive_avg_pool2d((1,1))",
        "x[0,3,7,5] | adaptive_avg_pool2d(1)",
        "x[2,3,7,5] | adaptive_avg_pool2d((3,7))",
        "x[2,3,14,70] | relu | adaptive_avg_pool2d(7) | tanh",
    ],
    "adaptive_avg_pool3d": ["x[2,3,4,5,6] | adaptive_avg_pool3d((2,3,4))", "x[2,3,4,5,6] | adaptive_avg_pool3d(1)", "x[3,4,5,6] | adaptive_avg_pool3d(1)"],
    # ---- reductions ----
    **{
        op: [
            f"x[2,3,5,7] | {op}(1)",
            f"x[2,3,5,7] | {op}(1,keepdim=True)",
            f"x[2,3,5,7] | {op}((0,2))",
            f"x[2,3,5,7] | {op}((-1,1),True)",
            f"x[2,3,5,7] | {op}((0,1,2,3))",
            f"x[2,3,5,7] | {op}",
            f"x[2,3,5,7] | {op}(keepdim=True)",
            f"x[2,1,5] | {op}(1)",
            f"x[7] | {op}(-1)",
            f"x[0,3] | {op}(1)",
            f"x[2,3,4,2,3,2] | {op}((1,3,5))",
            f"x[150,37] | {op}(0)",
            f"x[2,131,5,7] | relu | {op}(1)",
            f"x[2,13,11,3,5] | {op}((1,2))",
        ]
        for op in ("sum", "mean", "max", "min", "logsumexp")
    },
    **{
        op: [
            f"x[2,3,5] | {op}(1)",
            f"x[2,3,5] | {op}(dim=-1)",
            f"x[2,3,5] | {op}(0)",
            f"x[2,1,5] | {op}(1)",
            f"x[7] | {op}(0)",
            f"x[0,3] | {op}(1)",
            f"x[150,37] | {op}(0)",
            f"x[2,131,5,7] | relu | {op}(1)",
        ]
        for op in ("softmax", "log_softmax")
    },
    # ---- shapes ----
    "reshape": [
        "x[2,3,4] | reshape(4,6)",
        "x[2,3,4] | reshape((2,-1))",
        "x[2,3,4] | reshape(-1)",
        "x[0,3] | reshape(3,0)",
    ],
    "flatten": [
        "x[2,3,4] | flatten",
        "x[2,3,4] | flatten(1)",
        "x[2,3,4,5] | flatten(1,-2)",
        "x[2,3] | sum | flatten",
    ],
    "squeeze": ["x[2,1,3,1] | squeeze", "x[2,1,3,1] | squeeze(1)", "x[2,1,3,1] | squeeze((-1,0))"],
    "unsqueeze": ["x[2,3] | unsqueeze(0)", "x[2,3] | unsqueeze(-1)", "x[2,3] | unsqueeze(1)"],
    "dropout": ["x[2,3,4] | dropout", "x[2,3,4] | dropout(0.9)"],
    # ---- elements at other places ----
    "cat": [
        "x[2,3,4], y[2,5,4] | cat(@y, dim=1)",
        "x[2,3,4,5], y[2,3,4,2] | relu | cat(@y, third=@x, dim=-1) | tanh",
        "x[2,3,4], y[1,3,4] | cat(@y, third=@x, fourth=@x, fifth=@x, sixth=@x, seventh=@y, eighth=@x)",
        "x[3,4] | cat(p[3,4], dim=1) | sigmoid",
        "x[0,3], y[2,3] | cat(@y)",
        "x[7], y[5] | cat(@y)",
    ],
    "slice": [
        "x[2,7,4] | slice(1,1,6,2)",
        "x[2,7,4] | relu | slice(dim=-1,start=-3,end=-1) | exp",
        "x[2,7,4] | slice(1,5,2)",
        "x[5,7,4] | slice(start=2,end=100)",
        "x[9] | slice(step=4)",
    ],
    "permute": [
        "x[2,3,4,5] | permute(0,2,3,1)",
        "x[2,3,4,5] | tanh | permute((3,-2,1,0)) | neg",
        "x[2,3,4,2,3,2] | permute(0,5,1,4,2,3)",
        "x[7] | permute(0)",
        "x[0,3,2] | permute(2,0,1)",
    ],
    "flip": ["x[2,3,4] | flip(1)", "x[2,3,4,5] | relu | flip((-1,2)) | exp", "x[5] | flip(0)", "x[0,3] | flip((0,1))", "x[3,2,4] | flip(0) | tanh"],
    "expand": ["x[2,1,4] | expand(2,3,4)", "x[1,3] | relu | expand((5,-1)) | exp", "x[1,1] | expand(0,4)", "x[2,1] | expand(2,1)"],
    "pad": [
        "x[2,3,4,5] | pad((1,2))",
        "x[2,3,4,5] | exp | pad((1,2,-1,3),value=2.5) | neg",
        "x[2,3,4,5] | pad((0,0,0,0,2,1),value=-inf)",
        "x[2,0,5] | pad((0,0,1,1),value=1.5)",
        "x[6] | pad((-2,-4))",
    ],
    "interpolate": [
        "x[2,3,4] | interpolate(8)",
        "x[2,3,4,5] | relu | interpolate((8,11)) | tanh",
        "x[2,3,6,5] | interpolate((3,4))",
        "x[2,3,2,3,4] | interpolate((4,3,5))",
        "x[0,3,4,5] | interpolate(9)",
    ],
}

# Operators applied to reductions of nothing, which have values of their own.
EMPTY = [
    "x[0,3] | sum(0)",
    "x[0,3] | mean(0)",
    "x[0,3] | logsumexp(0)",
    "x[2,0,3] | sum((1,2))",
    "x[2,0,3] | logsumexp(1,keepdim=True)",
    "x[2,0] | softmax(1)",
]

# The three blocks the project is about, small.
BLOCKS = {
    "A": "x[2,8,14,15] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "B": "x[2,8,9,10] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "C": "x[2,8,9,10] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)",
}

# Graphs that are more than one line of operators.
GRAPHS = [
    "x[2,3,6,6] | conv2d(4,3,padding=1) @a | relu | conv2d(4,3,padding=1) | add(@a) | relu",
    "x[2,3,6,6] | conv2d(4,3,padding=1) | relu | cat(@x,dim=1) @a | conv2d(4,3,padding=1) | relu | cat(@a,dim=1) | conv2d(2,1)",
    "x[2,3,6,6] | conv2d(8,3,padding=1) @a | slice(1,0,4) | conv2d(4,3,padding=1) @b | @a | slice(1,4) | cat(@b,dim=1) | silu",
    "x[2,8,6,6] | conv2d(8,3,padding=1,groups=8) | permute(0,2,3,1) | layer_norm(8) | linear(12) | gelu | permute(0,3,1,2) | conv2d(2,1)",
    "x[2,4,6,6] | group_norm(2) | silu | interpolate(12) | conv2d(4,3,padding=1) | pad((1,1,1,1),value=3) | max_pool2d(2)",
    "x[2,4,6,6] | conv2d(6,3) | adaptive_avg_pool2d((3,2)) | flatten(1) | linear(3)",
    "x[1,6,4] | cat(@x) | add(p[1,6,4]) | permute(1,0,2) | softmax(1)",
    "x[2,3,6] | conv1d(4,3) @a | tanh @b | @a | sigmoid | mul(@b)",
    "x[2,4,6], y[2,4,6] | sub(@y) | square | mean((1,2))",
    "x[2,3,5] | exp @a | sum(1) @b | output(@b, @a)",
    "x[2,3,5] | relu @a | neg @b | output(@a, @b)",
    "x[2,3,5] | relu @a | neg | exp | tanh @b | output(@a, @b)",
    "x[2,4,5] | conv1d(4,1) | conv1d(4,1) | conv1d(2,1) | linear(3) | linear(2)",
    "x[2,3,8,8] | conv2d(8,3) | batch_norm | silu | adaptive_avg_pool2d(1) | flatten(1) | linear(5) | log_softmax(1)",
    "x[2,3,4,4,4] | conv_transpose3d(4,3,stride=2) | instance_norm | gelu | max_pool3d(2) | logsumexp(1,True)",
    "x[4,4] | matmul(@x) | softmax(-1)",
    "x[3,4,5,6] | add(p[6]) | tanh | sum(1)",
    "x[3,4,5,6] | mul(p[5,1]) | relu | max(1,keepdim=True)",
    "x[2,3,5] | linear(4) | adaptive_avg_pool1d(1)",
    "x[2,3,6,6] | conv2d(4,3) | mean((2,3))",
    "x[2,3,1] | relu | max_pool1d(2,1,1,2)",  # both taps of the window are padding: -inf, not 0
    "x[2,1,1] | group_norm(1,affine=False)",
    "x[0,2,1] | group_norm(1,affine=False)",
]
