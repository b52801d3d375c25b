# ruff: noqa: B023, E501 - calls are made before the next row, and rows are tables
"""A program that replaces functions of `torch` as counters of operations do, and prints what layers and functions call: for PyTorch and for Calque."""

import json
import sys
import types
import warnings

import torch
import torch.nn.functional as F
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
X, S, M, V = torch.rand(2, 4, 6), torch.rand(2, 4, 6, 6), torch.rand(3, 4), torch.rand(2, 4, 6, 6, 6)
IDS, LABELS = torch.tensor([[1, 2, 0], [3, 1, 2]]), torch.tensor([1, 0, 3])
ONES = -torch.ones(3)

MODULES = {
    (X,): """
        Identity() ReLU() ReLU(True) ReLU6() SELU() CELU() ELU() GELU() SiLU() Mish() Hardswish() Hardsigmoid() Hardtanh() Hardshrink() LeakyReLU() LogSigmoid()
        LogSoftmax(1) Softmax(1) Softmin(1) Softplus() Softshrink() Softsign() Tanh() Sigmoid() Tanhshrink() Threshold(0.1,0.2) GLU() PReLU() RReLU()
        Linear(6,2) Flatten() Unflatten(1,(2,2)) Dropout() Dropout1d() AlphaDropout() FeatureAlphaDropout()
        BatchNorm1d(4) InstanceNorm1d(4) LayerNorm(6) RMSNorm(6) GroupNorm(2,4) LocalResponseNorm(2)
        Conv1d(4,2,3) Conv1d(4,2,3,padding=1,padding_mode='circular') ConvTranspose1d(4,2,3)
        MaxPool1d(2) AvgPool1d(2) AdaptiveAvgPool1d(2) AdaptiveMaxPool1d(2) LPPool1d(2,2) MaxPool1d(2,return_indices=True)
        ConstantPad1d(1,0.) ZeroPad1d(1) ReflectionPad1d(1) ReplicationPad1d(1) CircularPad1d(1) Upsample(scale_factor=2)
        RNN(6,3,batch_first=True) LSTM(6,3,batch_first=True) GRU(6,3,batch_first=True)
        TransformerEncoderLayer(6,2,8,batch_first=True) TransformerEncoderLayer(6,2,8,norm_first=True,activation='gelu')
        Sequential(nn.Linear(6,3),nn.ReLU(),nn.Linear(3,2)) LazyLinear(3) LazyConv1d(3,2)
    """,
    (S,): """
        Softmax2d() Dropout2d() BatchNorm2d(4) InstanceNorm2d(4) SyncBatchNorm(4).eval() Conv2d(4,2,3) Conv2d(4,2,3,padding=1,padding_mode='reflect')
        Conv2d(4,2,3,padding='same') ConvTranspose2d(4,2,3) Unfold(2)
        MaxPool2d(2) MaxPool2d(2,return_indices=True) AvgPool2d(2) AdaptiveAvgPool2d(2) AdaptiveMaxPool2d(2) LPPool2d(2,2) FractionalMaxPool2d(2,3)
        ConstantPad2d(1,0.) ZeroPad2d(1) ReflectionPad2d(1) ReplicationPad2d(1) CircularPad2d(1) Upsample(scale_factor=2,mode='bilinear')
        UpsamplingNearest2d(scale_factor=2) UpsamplingBilinear2d(scale_factor=2) PixelShuffle(2) PixelUnshuffle(2) ChannelShuffle(2)
    """,
    (V,): """
        Dropout3d() BatchNorm3d(4) InstanceNorm3d(4) Conv3d(4,2,3) ConvTranspose3d(4,2,3) MaxPool3d(2) AvgPool3d(2) AdaptiveAvgPool3d(2) AdaptiveMaxPool3d(2)
        LPPool3d(2,2) FractionalMaxPool3d(2,3) ConstantPad3d(1,0.) ReplicationPad3d(1) ReflectionPad3d(1)
    """,
    (M, M * 0.5): """
        L1Loss() MSELoss() SmoothL1Loss() HuberLoss() KLDivLoss() SoftMarginLoss() PoissonNLLLoss() BCEWithLogitsLoss() CrossEntropyLoss() CosineSimilarity()
        PairwiseDistance() Bilinear(4,4,2) RNNCell(4,4) GRUCell(4,4)
    """,
    (M, M): "BCELoss() MultiLabelSoftMarginLoss()",
    (M, LABELS): "CrossEntropyLoss() NLLLoss() MultiMarginLoss() AdaptiveLogSoftmaxWithLoss(4,5,[2])",
    (M, M.gt(0.5).long()): "MultiLabelMarginLoss()",
    (M, M, M.abs() + 0.1): "GaussianNLLLoss() TripletMarginLoss() TripletMarginWithDistanceLoss()",
    (M[:, 0], M[:, 1], ONES): "MarginRankingLoss()",
    (M[:, 0], ONES): "HingeEmbeddingLoss()",
    (M, M, ONES): "CosineEmbeddingLoss()",
    (M, (M, M)): "LSTMCell(4,4)",
    (IDS,): "Embedding(5,3) EmbeddingBag(5,3)",
    (X, X, X): "MultiheadAttention(6,2) MultiheadAttention(6,2,batch_first=True).eval() MultiheadAttention(6,2,kdim=6,vdim=6,add_zero_attn=True)",
    (X, X): "TransformerDecoderLayer(6,2,8) Transformer(6,2,1,1,8)",
    (torch.rand(3, 2, 5).log_softmax(2), IDS[:, :2] + 1, torch.tensor([3, 3]), torch.tensor([2, 2])): "CTCLoss()",
}  # fmt: skip

FUNCTIONS = """
    relu(X) relu(X,True) relu_(X.clone()) relu6(X) selu(X) celu(X) elu(X) gelu(X) silu(X) mish(X) hardswish(X) hardsigmoid(X) hardtanh(X) leaky_relu(X) rrelu(X) glu(X)
    logsigmoid(X) softplus(X) softsign(X) tanhshrink(X) softmin(X,1) softmax(X,1) log_softmax(X,1) gumbel_softmax(X) gumbel_softmax(X,hard=True) tanh(X) sigmoid(X)
    threshold(X,0.1,0.2) dropout(X) alpha_dropout(X) dropout1d(X) dropout2d(S) dropout3d(V) feature_alpha_dropout(X) embedding(IDS,torch.rand(5,3)) embedding_bag(IDS,torch.rand(5,3)) one_hot(LABELS)
    batch_norm(X,None,None,training=True) instance_norm(X) layer_norm(X,(6,)) rms_norm(X,(6,)) group_norm(X,2) local_response_norm(X,2) normalize(X) cosine_similarity(M,M)
    pairwise_distance(M,M) pdist(M) pad(X,(1,1)) pad(X,(1,1),mode='circular') interpolate(S,scale_factor=2) upsample(S,scale_factor=2) grid_sample(S,S.reshape(2,4,18,2)[...,:2])
    affine_grid(torch.rand(2,2,3),[2,1,4,4]) unfold(S,2) fold(torch.rand(1,4,4),(3,3),(2,2)) max_pool2d(S,2) max_pool2d(S,2,return_indices=True) avg_pool2d(S,2)
    adaptive_avg_pool2d(S,2) adaptive_max_pool2d(S,2) lp_pool2d(S,2.,2) lp_pool1d(X,2.,2) max_unpool2d(*F.max_pool2d(S,2,return_indices=True),2) fractional_max_pool2d(S,2,3)
    cross_entropy(M,LABELS) nll_loss(M,LABELS) mse_loss(M,M) l1_loss(M,M) smooth_l1_loss(M,M) huber_loss(M,M) kl_div(M,M) binary_cross_entropy(M,M)
    binary_cross_entropy_with_logits(M,M) poisson_nll_loss(M,M) gaussian_nll_loss(M,M,M) soft_margin_loss(M,M) multilabel_soft_margin_loss(M,M) multi_margin_loss(M,LABELS)
    triplet_margin_loss(M,M,M) triplet_margin_with_distance_loss(M,M,M) margin_ranking_loss(M[:,0],M[:,1],ONES) hinge_embedding_loss(M[:,0],ONES) cosine_embedding_loss(M,M,ONES)
    scaled_dot_product_attention(X,X,X) linear(X,X[0]) bilinear(M,M,torch.rand(2,4,4)) conv1d(X,X) conv2d(S,S) prelu(X,M[0,:1]) pixel_shuffle(S,2) channel_shuffle(S,2) hardshrink(X)
"""

PLACES = {"F": F, "init": nn.init}  # modules whose functions layers look up by name when they are called
COUNTS = {}


def functions(space):
    """The public functions of a module."""
    kinds = (types.FunctionType, types.BuiltinFunctionType)
    return [name for name in dir(space) if isinstance(getattr(space, name), kinds) and not name.startswith("_") and "torch_function" not in name]


def counted(name, function):
    def call(*args, **kwargs):
        COUNTS[name] = COUNTS.get(name, 0) + 1
        return function(*args, **kwargs)

    return call


def replaced(run):
    """What a call does with every function replaced that has been declared above, restored afterwards."""
    COUNTS.clear()
    for place, name, function in BEFORE:
        setattr(PLACES[place], name, counted(f"{place}.{name}", function))
    try:
        run()
    except Exception as error:
        COUNTS[f"{type(error).__name__}: {error}"[:200]] = 1
    finally:
        for place, name, function in BEFORE:
            setattr(PLACES[place], name, function)
    return dict(sorted(COUNTS.items()))


if __name__ == "__main__":
    NAMES = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {place: functions(space) for place, space in PLACES.items()}
    BEFORE = [(place, name, getattr(PLACES[place], name)) for place in PLACES for name in NAMES[place] if hasattr(PLACES[place], name)]
    found = {}
    for inputs, rows in MODULES.items():
        for row in rows.split():
            made = []
            found[row + " made"] = replaced(lambda: made.append(eval(f"nn.{row}")))
            module = made[0]
            arguments = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
            if "Lazy" in row:
                module(*arguments)
            found[row + f" {len(inputs)}"] = replaced(lambda: module(*arguments))
    for row in FUNCTIONS.split():
        if "(*" in row:
            indexed = F.max_pool2d(S, 2, return_indices=True)
            found[f"F.{row}"] = replaced(lambda: F.max_unpool2d(*indexed, 2))
            continue
        name, arguments = row.split("(", 1)
        function, values = getattr(F, name), eval(f"(lambda *a, **k: (a, k))({arguments}")
        found[f"F.{row}"] = replaced(lambda: function(*values[0], **values[1]))
    print(json.dumps({"names": NAMES, "found": found}))
