from .antecedent import (
    AntecedentAttentionProbe as AntecedentAttentionProbe,
    AntecedentWordsProbe as AntecedentWordsProbe,
)
from .frozen import Sizes as Sizes
from .head_selection import (
    AttentionOnlyProbe as AttentionOnlyProbe,
    AttentionWordsProbe as AttentionWordsProbe,
    DistancesWordsProbe as DistancesWordsProbe,
    HeadSelectionProbe as HeadSelectionProbe,
)
from .structural import (
    StructuralDepthProbe as StructuralDepthProbe,
    StructuralDistanceProbe as StructuralDistanceProbe,
    StructuralProbe as StructuralProbe,
)
